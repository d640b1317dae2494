"""Which version is spoken: the highest that broker, client and cap allow, or a clear refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import UnsupportedVersionException
from spark_kafka_sink.wire.messages import (
    API_VERSIONS,
    APIS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Api,
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from spark_kafka_sink.wire.versions import NodeApiVersions

VERSIONS = st.integers(0, 20)


@given(
    api=st.sampled_from(list(APIS.values())),
    low=VERSIONS,
    high=VERSIONS,
    cap=st.none() | VERSIONS,
    least=VERSIONS,
)
def test_the_version_is_the_highest_that_broker_client_and_limits_allow(
    api: Api, low: int, high: int, cap: int | None, least: int
) -> None:
    node = NodeApiVersions({api.key: (low, high)})
    usable = [
        version
        for version in range(api.min_version, api.max_version + 1)
        if low <= version <= high and least <= version and (cap is None or version <= cap)
    ]
    if usable:
        assert node.latest_usable_version(api, cap, least) == usable[-1]
    else:
        with pytest.raises(UnsupportedVersionException, match=api.name):
            node.latest_usable_version(api, cap, least)


def test_an_old_and_a_new_broker_get_the_best_they_have() -> None:
    # Kafka 0.11 and 4.x; 4.x lists Produce from 0 on for librdkafka's sake.
    old = NodeApiVersions({0: (0, 3), 3: (0, 4), 18: (0, 1), 22: (0, 0)})
    new = NodeApiVersions({0: (0, 13), 3: (0, 13), 18: (0, 4), 22: (0, 6)})
    apis = (PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID)
    assert [old.latest_usable_version(api) for api in apis] == [3, 4, 1, 0]
    assert [new.latest_usable_version(api) for api in apis] == [13, 13, 4, 5]


def test_a_broker_before_0_11_gets_message_sets_and_no_producer_id() -> None:
    kafka_0_10 = NodeApiVersions({0: (0, 2), 3: (0, 2), 18: (0, 0)})
    apis = (PRODUCE, METADATA, API_VERSIONS)
    assert [kafka_0_10.latest_usable_version(api) for api in apis] == [2, 2, 0]
    with pytest.raises(UnsupportedVersionException, match="InitProducerId"):
        kafka_0_10.latest_usable_version(INIT_PRODUCER_ID)


def test_a_refusal_names_the_api_and_both_ranges() -> None:
    too_old = NodeApiVersions({1: (0, 3)})
    with pytest.raises(UnsupportedVersionException) as refusal:
        too_old.latest_usable_version(FETCH)
    assert "Fetch" in str(refusal.value)
    assert "0 to 3" in str(refusal.value)
    assert "4 to 17" in str(refusal.value)
    assert refusal.value.api == "Fetch"


def test_an_api_that_the_broker_does_not_list_is_refused_as_such() -> None:
    with pytest.raises(UnsupportedVersionException, match="supports none"):
        NodeApiVersions({}).latest_usable_version(INIT_PRODUCER_ID)


def test_a_broker_s_answer_gives_ranges_and_finalized_features() -> None:
    answer = ApiVersionsResponse(
        error_code=0,
        api_keys=[
            ApiVersion(api_key=0, min_version=3, max_version=11),
            ApiVersion(api_key=999, min_version=0, max_version=1),
        ],
        finalized_features_epoch=7,
        finalized_features=[
            FinalizedFeatureKey(
                name="transaction.version", max_version_level=2, min_version_level=1
            )
        ],
    )
    node = NodeApiVersions.of(answer)
    assert node.latest_usable_version(PRODUCE) == 11
    assert node.finalized_features == {"transaction.version": 2}
    assert node.finalized_features_epoch == 7
