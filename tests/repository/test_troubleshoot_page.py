"""docs/how-to/troubleshoot.md names errors in bold; a test provokes each of them."""

from __future__ import annotations

import re
from typing import Final

import pytest
from support.documents.named_tests import ROOT, exists, source

PAGE: Final = ROOT / "docs" / "how-to" / "troubleshoot.md"
# In bold, an error is code; the words behind it say when it comes.
BOLD: Final = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)

_MODES: Final = "spark/test_save_modes.py"
_REGISTERED: Final = f"{_MODES}::test_register_lets_the_bare_save_append_in_a_classic_session"
_PARITY: Final = "parity/test_modes.py"
_BUCKETS: Final = f"{_PARITY}::test_buckets_and_their_order_are_refused"
_CANNOT_RUN: Final = "test_a_worker_that_cannot_run_the_sink_is_told_in_a_sentence"
_STREAMING: Final = "spark/test_streaming.py"
_TROUBLE: Final = "unit/network/test_client_trouble.py"
_NETWORK: Final = "integration/test_network.py"
_CAUSES: Final = "spark/test_causes.py::test_a_fault_has_the_same_class_and_words_everywhere"

# The beginning of each error, and the test that provokes it.
PROVOKED_BY: Final = {
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source": _REGISTERED,
    "[DATA_SOURCE_NOT_EXIST]": (
        f"{_MODES}::test_a_new_session_does_not_know_a_source_that_was_registered_in_another"
    ),
    "ModuleNotFoundError: No module named": (
        "spark/test_places_standalone.py::test_a_worker_that_lacks_a_module_is_told_by_its_name"
    ),
    "…, which Spark runs on …, has no module": f"spark/test_places_standalone.py::{_CANNOT_RUN}",
    "… is Python 3.12, but the driver runs": f"spark/test_places_standalone.py::{_CANNOT_RUN}",
    "Spark's workers would run": (
        "spark/test_worker_python.py::test_a_python_without_the_sink_is_refused_before_any_job"
    ),
    "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]": (
        f"{_PARITY}::test_the_default_mode_needs_register_here_and_the_v1_path_there"
    ),
    'cannot be written in the "Ignore" mode': (
        f"{_MODES}::test_append_works_and_the_default_mode_is_refused_by_spark_itself"
    ),
    "Save mode ignore not allowed for Kafka": _REGISTERED,
    "Save mode Overwrite not allowed for Kafka": f"{_MODES}::test_overwrite_says_what_to_do",
    "The provided partitioning or clustering columns do not match": (
        f"{_PARITY}::test_a_layout_is_refused_here_and_ignored_by_the_v1_path_there"
    ),
    "'save' does not support bucketBy": _BUCKETS,
    "sortBy must be used together with bucketBy": _BUCKETS,
    "partitionBy is about files": _REGISTERED,
    "requirement failed: pykafka does not support Update mode": (
        f"{_STREAMING}::test_output_mode_update_is_refused_by_spark_itself"
    ),
    "Spark cannot write to a Python sink in output mode update": (
        f"{_STREAMING}::test_output_mode_update_is_refused_at_the_start_with_the_way_to_write_it"
    ),
    "Sink pykafka does not support async progress tracking": (
        "parity/test_streams.py::test_async_progress_tracking_is_spark_s_own_sink_s_alone"
    ),
    "A query with a continuous trigger": (
        f"{_STREAMING}::test_the_continuous_trigger_is_refused_at_the_start"
    ),
    "no broker has answered within": _CAUSES,
    "no broker has answered for 5 s": (
        f"{_TROUBLE}::test_who_is_tried_in_vain_is_told_once_in_a_process_after_five_seconds"
    ),
    "no broker that is needed has answered": (
        f"{_TROUBLE}::test_a_broker_that_is_down_is_told_if_it_is_the_only_one"
    ),
    "… bootstrap (…) returned this address": (
        f"{_TROUBLE}::test_an_advertised_address_that_cannot_be_reached_is_told_after_five_seconds"
    ),
    "the delegation token cannot be created": (
        "integration/test_delegation_tokens.py"
        "::test_brokers_without_tokens_say_which_setting_they_lack"
    ),
    "refused the login of the delegation token": (
        "security/test_delegation_tokens.py"
        "::test_a_task_that_outlives_its_token_fails_with_what_to_do"
    ),
    "Topic … not present in metadata after": (
        "spark/test_refusals.py::test_an_unknown_topic_is_named_within_max_block_ms"
    ),
    "topic … did not exist and was created now": (
        "unit/spark/driver/hooks/test_written_versions.py"
        "::test_a_written_version_of_a_topic_that_was_deleted_is_not_skipped_in_silence"
    ),
    "… record(s) were not acknowledged within": (
        "integration/test_faults.py"
        "::test_rows_that_cannot_be_sent_are_an_error_after_delivery_timeout_ms"
    ),
    "topic …: TOPIC_AUTHORIZATION_FAILED (29)": _CAUSES,
    "…: the record is … bytes when serialized": _CAUSES,
    "MESSAGE_TOO_LARGE": _CAUSES,
    "CLUSTER_AUTHORIZATION_FAILED": (
        "unit/producer/test_sender_sequences.py"
        "::test_no_producer_id_without_permission_and_the_sentence_says_how_to_do_without"
    ),
}

# The same for the first table, whose texts are Spark's.
SPARK_SAYS: Final = {
    "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer": (
        "spark/test_refusals.py::test_what_is_refused_on_the_driver_is_an_error_of_planning"
    ),
    "An exception was thrown from the Python worker": (
        "spark/test_refusals.py::test_a_null_topic_says_how_to_set_a_default"
    ),
}

# The same for the second table: what the error says of each address.
OF_ADDRESSES: Final = {
    "Connection refused": (
        "spark/test_refusals.py::test_a_dead_bootstrap_address_is_named_within_max_block_ms"
    ),
    "no connection after … s": (
        f"{_NETWORK}::test_an_address_whose_packets_are_dropped_is_told_as_one"
    ),
    "it accepts connections but has sent nothing": (
        f"{_NETWORK}::test_a_port_that_takes_connections_and_says_nothing_is_told_as_one"
    ),
    "no response to Metadata for … s": (
        f"{_NETWORK}::test_a_broker_that_does_not_respond_to_a_request_is_told_as_one"
    ),
    "the peer does not speak Kafka's protocol: it speaks HTTP": (
        f"{_NETWORK}::test_a_peer_that_is_no_broker_is_named_with_what_it_said"
    ),
    "expects TLS: set kafka.security.protocol": (
        "integration/test_secured.py::test_the_wrong_protocol_or_mechanism_is_an_error_at_once"
    ),
    "it may require a client certificate (kafka.ssl.keystore.*)": (
        "integration/test_tls_brokers.py"
        "::test_a_broker_that_sends_nothing_after_the_handshake_may_require_a_client_certificate"
    ),
    "before it answered the first request; it may expect SASL": (
        "integration/test_secured.py::test_a_listener_with_logins_is_told_at_once_and_in_the_error"
    ),
    "again before it answered a Produce request of … bytes": (
        "unit/network/test_client_uploads.py"
        "::test_a_broker_that_hangs_up_on_large_requests_again_may_have_a_lower_limit"
    ),
    "this is the listener of a KRaft controller": (
        f"{_NETWORK}::test_a_controller_s_port_is_told_as_one"
    ),
}


def test_what_spark_says_is_in_the_first_table() -> None:
    before_sections = PAGE.read_text().partition("\n## ")[0]
    table = re.findall(r"^\| `(.+?)` \|", before_sections, re.MULTILINE)
    assert table == list(SPARK_SAYS)


def test_what_the_error_says_of_an_address_is_in_the_second_table() -> None:
    section = PAGE.read_text().partition("\n## Brokers and topics\n")[2]
    assert re.findall(r"^\| `(.+?)`.* \|$", section, re.MULTILINE) == list(OF_ADDRESSES)


@pytest.mark.parametrize("said", OF_ADDRESSES)
def test_the_test_that_provokes_it_expects_these_words(said: str) -> None:
    # The producer and KafkaAdmin name options without the prefix of Spark's options.
    words = said.partition(" …")[0].replace("kafka.", "")
    assert words in source(OF_ADDRESSES[said]).replace("\\", "")


def test_each_error_of_the_page_is_in_this_table_and_the_other_way_round() -> None:
    sections = PAGE.read_text().partition("\n## ")[2]
    named = [text.lstrip("`") for text in BOLD.findall(sections)]
    assert len(named) == len(PROVOKED_BY)
    for text, beginning in zip(named, PROVOKED_BY, strict=True):
        assert text.startswith(beginning)


@pytest.mark.parametrize("name", sorted({*PROVOKED_BY.values(), *SPARK_SAYS.values()}))
def test_the_test_that_provokes_an_error_exists(name: str) -> None:
    assert exists(name)
