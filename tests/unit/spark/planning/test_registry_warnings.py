"""Which process of the driver logs a warning about the schema registry, and how often."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from pyspark.sql import types as T  # noqa: N812 - as everywhere
from support.brokers.registry_server import RegistryServer, Reply, error

from spark_kafka_sink import logs
from spark_kafka_sink.auth.token_renewal import TokenException
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.schema_registry import registry_connection
from spark_kafka_sink.schema_registry.schema_registry_client import SchemaRegistryClient
from spark_kafka_sink.schema_registry.settings import RegistrySettings
from spark_kafka_sink.spark.micro_batch import batch_id_option
from spark_kafka_sink.spark.options import SinkOptions
from spark_kafka_sink.spark.planning import datasource, kept_schemas
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource

# The column "extra" is not sent, and every process that plans a write says so.
ROWS: Final = (
    T.StructType().add("value", T.StructType().add("id", T.LongType())).add("extra", T.StringType())
)
UNSENT: Final = "extra"
UNENCRYPTED: Final = "schema.registry.url is http: the credentials travel unencrypted"
STILL_WRITTEN: Final = "column value is still written with the schema that has id 1"


@pytest.fixture(autouse=True)
def _one_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Make the folder of the driver, brokers that are right, and a registry that is remote."""
    monkeypatch.setattr(kept_schemas, "driver_folder", lambda: tmp_path)
    monkeypatch.setattr(registry_connection, "is_remote", lambda _: True)

    def right(options: SinkOptions, **_: object) -> SinkOptions:
        return options

    monkeypatch.setattr(datasource, "check_cluster", right)


class Process:
    """A process of the driver, which knows what it has kept and what it has warned of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self._monkeypatch, self._caplog = monkeypatch, caplog
        self._kept = CheckCache[str, Any]()
        self._warn = lru_cache(maxsize=128)(logs._warn.__wrapped__)

    def run(self, call: Callable[..., object], *arguments: object) -> list[str]:
        """Call a function in the process. Return the warnings that the call logs."""
        self._monkeypatch.setattr(kept_schemas, "_kept", self._kept)
        self._monkeypatch.setattr(logs, "_warn", self._warn)
        self._caplog.clear()
        with self._caplog.at_level(logging.WARNING):
            call(*arguments)
        return list(self._caplog.messages)


@pytest.fixture
def new_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[], Process]:
    """Makes processes."""
    return lambda: Process(monkeypatch, caplog)


def options_of(server: RegistryServer, **more: str) -> dict[str, str]:
    """Return the options of a write. Names have _ for a dot."""
    return {
        "kafka.bootstrap.servers": "b:1",
        "topic": "t",
        "valueFormat": "avro",
        "schema.registry.url": server.url,
        "basic.auth.user.info": "u:p",
        "checkpointLocation": "/checkpoints/c",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def plan_job(options: Mapping[str, str]) -> None:
    """Plan a batch job, as Spark does."""
    own = {name: text for name, text in options.items() if name != "checkpointLocation"}
    KafkaDataSource(own).writer(ROWS, False)  # noqa: FBT003 - Spark's signature


def plan_stream(options: Mapping[str, str]) -> None:
    """Plan a micro-batch of a stream, as Spark does."""
    KafkaDataSource(dict(options)).streamWriter(ROWS, False)  # noqa: FBT003 - Spark's signature


def check_job(options: Mapping[str, str]) -> None:
    """Check a batch job in the user's process, as a hooked ``save()`` and ``write_batch`` do."""
    own = {name: text for name, text in options.items() if name != "checkpointLocation"}
    datasource.check_batch_write(ROWS, own)


def check_stream(options: Mapping[str, str]) -> None:
    """Check a stream in the user's process, as a hooked ``start()`` does."""
    datasource.check_stream_write(ROWS, options)


def check_of_client(options: Mapping[str, str]) -> None:
    """Check a batch job in the process of a Spark Connect client."""
    own = {name: text for name, text in options.items() if name != "checkpointLocation"}
    datasource.check_options_and_columns(ROWS, own)


def check_stream_of_client(options: Mapping[str, str]) -> None:
    """Check a stream in the process of a Spark Connect client."""
    datasource.check_options_and_columns_of_stream(ROWS, options)


def written(number: int) -> dict[str, str]:
    """Return the option that a hooked ``save()`` or ``start()`` adds."""
    return {"pykafka.write.id": f"w{number}"}


def nothing(_number: int) -> dict[str, str]:
    """Return no options."""
    return {}


Call = Callable[[Mapping[str, str]], None]
# The check in the user's process, Spark's planning, the options of each write, and whether the
# user's process queries the registry.
WRITES: dict[str, tuple[Call | None, Call, Callable[[int], dict[str, str]], bool]] = {
    "save": (None, plan_job, nothing, False),
    "save after register": (check_job, plan_job, written, True),
    "save with Spark Connect": (check_of_client, plan_job, nothing, False),
    "write_batch": (check_job, plan_job, batch_id_option, True),
    "write_batch with Spark Connect": (check_of_client, plan_job, batch_id_option, False),
    "start": (None, plan_stream, nothing, False),
    "start after register": (check_stream, plan_stream, written, True),
    "start with Spark Connect": (check_stream_of_client, plan_stream, nothing, False),
}


@pytest.mark.parametrize("ttl", ["-1", "0", "600"])
@pytest.mark.parametrize("name", WRITES)
def test_a_warning_about_the_connection_is_logged_by_the_process_that_connects_first(
    name: str,
    ttl: str,
    server: RegistryServer,
    clock: SimpleNamespace,
    new_process: Callable[[], Process],
) -> None:
    check, plan, of_write, queries_ahead = WRITES[name]
    user, planning = new_process(), new_process()
    of_user: list[str] = []
    of_planning: list[str] = []
    for number in range(3):
        options = options_of(server, latest_cache_ttl_sec=ttl) | of_write(number)
        if check is not None:
            of_user += user.run(check, options)
        of_planning += planning.run(plan, options)
        clock.now += 601
    # What both processes check, only the process that plans the write warns of.
    (unsent,) = [each for each in of_planning if UNSENT in each]
    others = [each for each in of_planning if each != unsent]
    first, second = (of_user, others) if queries_ahead else (others, of_user)
    (said,) = first
    assert said.startswith(UNENCRYPTED)
    assert second == []
    # Spark ends a planning process without work after a minute. The next one warns only of columns.
    (unsent_again,) = new_process().run(plan, options)
    assert unsent_again == unsent


@pytest.mark.parametrize("ttl", ["0", "600"])
@pytest.mark.parametrize("has_check", [True, False])
def test_a_schema_that_write_batch_still_uses_is_told_once(
    has_check: bool,  # noqa: FBT001 - a parameter of the test
    ttl: str,
    server: RegistryServer,
    clock: SimpleNamespace,
    new_process: Callable[[], Process],
) -> None:
    user, planning = new_process(), new_process()
    numbers = iter(range(10))

    def warnings(planning: Process) -> tuple[int, int]:
        """Write a micro-batch. Return how many of the warnings each process logs."""
        clock.now += 601
        options = options_of(server, latest_cache_ttl_sec=ttl) | batch_id_option(next(numbers))
        of_user = user.run(check_job, options) if has_check else []
        of_planning = planning.run(plan_job, options)
        return sum(STILL_WRITTEN in each for each in of_user), sum(
            STILL_WRITTEN in each for each in of_planning
        )

    once = (1, 0) if has_check else (0, 1)
    assert warnings(planning) == (0, 0)
    server.add("t-value", '"long"')
    assert warnings(planning) == once
    for process in (planning, new_process(), new_process()):
        assert warnings(process) == (0, 0)
    # Another problem is another warning.
    server.fault = lambda call: error(401, 401, "Unauthorized")
    assert warnings(planning) == once
    assert warnings(new_process()) == (0, 0)


@pytest.fixture(params=["one process", "new processes"])
def planned(
    request: pytest.FixtureRequest,
    server: RegistryServer,
    clock: SimpleNamespace,
    new_process: Callable[[], Process],
) -> Callable[[], list[str]]:
    """Plans a micro-batch of a stream. Returns the warnings that a schema is still used."""
    options = options_of(server, latest_cache_ttl_sec="60") | written(1)
    new_process().run(check_stream, options)
    only = new_process()

    def plan() -> list[str]:
        clock.now += 60
        process = only if request.param == "one process" else new_process()
        return [each for each in process.run(plan_stream, options) if STILL_WRITTEN in each]

    return plan


def test_the_planning_of_a_stream_warns_only_if_the_problem_is_new(
    server: RegistryServer, planned: Callable[[], list[str]]
) -> None:
    assert planned() == []
    for _ in range(2):
        server.fault = lambda call: error(401, 401, "Unauthorized")
        assert [len(planned()) for _ in range(3)] == [1, 0, 0]
        server.fault = lambda call: None
        assert planned() == []


def test_another_version_that_does_not_fit_is_another_problem(
    server: RegistryServer, planned: Callable[[], list[str]]
) -> None:
    assert planned() == []
    for name in ("x", "y"):
        fields = [{"name": each, "type": "long"} for each in ("id", name)]
        server.add("t-value", {"type": "record", "name": "V", "fields": fields})
        (warning,) = planned()
        assert f"value.{name}" in warning
        assert planned() == []


def test_an_error_of_the_registry_in_other_words_is_no_new_problem(
    server: RegistryServer, planned: Callable[[], list[str]]
) -> None:
    for number, count in enumerate([1, 0, 0]):
        server.faults = [error(401, 401, f"Unauthorized: request {number}")]
        assert len(planned()) == count
    server.fault = lambda call: error(403, 403, "Forbidden")
    assert [len(planned()) for _ in range(2)] == [1, 0]


def test_what_takes_the_place_of_an_outage_is_another_problem(
    server: RegistryServer, planned: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, refusals = registry_connection.connect, list[TokenException]()

    def connect_to_it(settings: RegistrySettings, config: ProducerConfig) -> SchemaRegistryClient:
        client = connect(settings, config)
        headers = client._headers

        def with_token(address: str) -> Mapping[str, str]:
            if refusals:
                raise refusals[0]
            return headers(address)

        monkeypatch.setattr(client, "_headers", with_token)
        monkeypatch.setattr(client, "_sleep", lambda _: None)
        return client

    monkeypatch.setattr(registry_connection, "connect", connect_to_it)
    for status, count in ((503, 1), (502, 0), (503, 0)):
        server.fault = lambda call, status=status: error(status, status, "away")  # type: ignore[misc]
        assert len(planned()) == count
    server.fault = lambda call: Reply(200, [bytes(17 << 20)])
    for count in (1, 0):
        said = planned()
        assert ["its response is larger" in each for each in said] == [True] * count
    for reason, is_final in (("it is away", False), ("it answered 401", True)):
        refusals[:] = [TokenException(reason, is_final=is_final)]
        for count in (1, 0):
            assert [reason in each for each in planned()] == [True] * count
