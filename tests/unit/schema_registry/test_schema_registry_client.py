"""SchemaRegistryClient: its calls, the errors of a registry, and how hostile ones end it."""

# ruff: noqa: E501 - messages stand in one piece

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from support.brokers.registry_server import (
    Call,
    RegistryServer,
    Reply,
    error,
    guid_of,
    registry_server,
)

from spark_kafka_sink.auth.token_endpoint import basic_authorization
from spark_kafka_sink.errors import DataException, RestClientException
from spark_kafka_sink.network.http import MOST_BYTES, HttpLimits
from spark_kafka_sink.schema_registry.schema_registry_client import (
    RegistryUrl,
    SchemaRegistryClient,
)
from spark_kafka_sink.schema_registry.schemas import (
    AVRO,
    JSON,
    RegisteredSchema,
    Schema,
    SchemaReference,
)

LONG = Schema('"long"')
RECORD = Schema('{"type": "record", "name": "R", "fields": []}')
# No attempt of a test waits for this, other than those that are to be slow.
LIMITS = HttpLimits(60.0, 60.0)


class Clock:
    """A clock that only sleeping moves. waits: how long the client has slept each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def time(self) -> float:
        """Return the time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the time."""
        self.waits.append(seconds)
        self.now += seconds


class Highest(Random):
    """Random numbers that are as high as they can be."""

    def random(self) -> float:
        """Return the highest number."""
        return 1.0


@pytest.fixture
def clock() -> Clock:
    """The clock of the clients."""
    return Clock()


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry."""
    with registry_server() as found:
        yield found


def client_of(*urls: str, clock: Clock, limits: HttpLimits = LIMITS) -> SchemaRegistryClient:
    """Return a client without credentials."""
    return SchemaRegistryClient(
        [RegistryUrl(url, url) for url in urls],
        lambda url: {},
        limits=limits,
        clock=clock.time,
        sleep=clock.sleep,
        random=Highest(),
    )


@pytest.fixture
def client(server: RegistryServer, clock: Clock) -> SchemaRegistryClient:
    """A client of the registry."""
    return client_of(server.url, clock=clock)


def test_a_schema_is_registered_once_and_found(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    subject = "a/b ü-value"
    assert client.latest(subject) is None
    assert client.lookup(subject, LONG) is None
    registered = [client.register(subject, each) for each in (LONG, RECORD, LONG)]
    assert [each.schema_id for each in registered] == [1, 2, 1]
    assert client.latest(subject) == RegisteredSchema(RECORD, 2, subject, 2)
    assert client.version(subject, 1) == RegisteredSchema(LONG, 1, subject, 1)
    assert client.version(subject, 3) is None
    assert client.lookup(subject, LONG) == RegisteredSchema(LONG, 1, subject, 1)
    assert client.lookup(subject, Schema('"int"')) is None
    assert client.schema_of_id(2) == RegisteredSchema(RECORD, 2)
    assert client.schema_of_id(7) is None
    assert server.asked()[:3] == [
        f"GET /subjects/{subject}/versions/latest",
        f"POST /subjects/{subject}",
        f"POST /subjects/{subject}/versions",
    ]


def test_an_id_is_one_of_the_context_that_the_subject_names(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    client.register("t", LONG)
    server.contexts[".a ü"] = {1: {"schema": RECORD.text}}
    assert client.schema_of_id(1, ":.a ü:t") == RegisteredSchema(RECORD, 1)
    assert server.calls[-1].query == {"subject": [":.a ü:t"]}
    assert client.schema_of_id(1, ":.other:t") is None
    # Registries that do not have contexts get no parameter.
    for subject in ("", "t", ":.:t", "a:.b"):
        assert client.schema_of_id(1, subject) == RegisteredSchema(LONG, 1)
        assert server.calls[-1].query == {}
    server.faults = [error(403, 403, "no")]
    with pytest.raises(RestClientException) as refused:
        client.schema_of_id(1, ":.a:t")
    what = "the schema registry cannot get the schema with id 1 in the context of subject ':.a:t'"
    assert str(refused.value).startswith(f"{what}: it answered 403")


def test_a_reference_without_a_context_is_to_the_context_of_its_schema(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    def uses(subject: str) -> dict[str, object]:
        return {"name": subject, "subject": subject, "version": 1}

    server.add(":.sales:ids", '"id"')
    server.add(":.sales:names", '"name"', references=[uses("ids")])
    server.add("common", '"common"')
    server.add(":.sales:t", '"t"', references=[uses("names"), uses(":.:common")])
    server.add(":.:common", '"common"')
    latest = client.latest(":.sales:t")
    assert latest is not None
    found = client.referenced(latest.schema, ":.sales:t")
    assert [each.text for each in found.values()] == ['"id"', '"name"', '"common"']
    with pytest.raises(DataException, match=r"no version 1 of subject 'names': register it"):
        client.referenced(latest.schema, "t")


def test_a_field_with_its_default_may_be_null(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    names = ("schemaType", "references", "subject", "version", "guid", "ruleSet", "metadata")
    answer = {"schema": LONG.text, "id": 7, **dict.fromkeys(names)}
    server.faults = [Reply(200, answer)] * 3
    assert client.latest("s") == RegisteredSchema(LONG, 7)
    assert client.lookup("s", LONG) == RegisteredSchema(LONG, 7)
    assert client.schema_of_id(7) == RegisteredSchema(LONG, 7)


def test_a_conflict_with_another_client_that_registers_the_same_schema_is_no_error(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    def conflict(call: Call) -> Reply | None:
        """Register the schema for another client first, and refuse it for this one."""
        if call.path[-1] != "versions":
            return None
        server.add("s", LONG.text)
        return error(409, 409, "An artifact with ID 's' in group 'null' already exists.")

    server.has_guids = True
    server.fault = conflict
    assert client.register("s", LONG) == RegisteredSchema(LONG, 1, "s", 1, guid=guid_of(1))
    assert server.asked() == ["POST /subjects/s/versions", "POST /subjects/s"]
    # If the other client has registered another schema, the conflict is the error, also if the
    # schema cannot be looked up.
    for looked_up in (None, error(403, 403, "not allowed")):
        server.faults = [conflict(Call("POST", ("versions",), {}, {}, {})), looked_up]
        with pytest.raises(RestClientException, match="already exists") as found:
            client.register("s", RECORD)
        assert found.value.status == 409


def test_type_references_and_normalize_are_sent(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    reference = SchemaReference("com.shop.Id", "ids", 1)
    schema = Schema('{"type": "object"}', JSON, (reference,))
    client.register("t", schema, normalize=True)
    client.lookup("t", schema, normalize=True)
    client.register("t", LONG)
    sent = {
        "schema": schema.text,
        "schemaType": "JSON",
        "references": [{"name": "com.shop.Id", "subject": "ids", "version": 1}],
    }
    assert [(call.query, call.body) for call in server.calls] == [
        ({"normalize": ["true"]}, sent),
        ({"normalize": ["true"]}, sent),
        ({}, {"schema": '"long"'}),
    ]
    (call, *_) = server.calls
    assert call.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    assert call.headers["accept"] == "application/vnd.schemaregistry.v1+json, application/json"
    assert client.lookup("t", schema) == RegisteredSchema(schema, 1, "t", 1)


def test_rules_are_noticed(server: RegistryServer, client: SchemaRegistryClient) -> None:
    server.add("t", "long", ruleSet={"domainRules": [{"name": "encrypt"}]})
    server.add("u", "long", ruleSet=None)
    # Registries may return the lists of rules although they are empty.
    empty: dict[str, object] = {"domainRules": [], "migrationRules": []}
    server.add("v", "long", ruleSet=empty)
    found = [client.latest(subject) for subject in ("t", "u", "v")]
    assert [each and each.has_rules for each in found] == [True, False, False]
    for rules, has_rules in ((empty, False), ({**empty, "newRules": [{}]}, True), (["x"], True)):
        reply = Reply(200, {"id": 7, "ruleSet": rules})
        server.faults = [reply]
        registered = client.register("t", LONG)
        assert registered == RegisteredSchema(LONG, 7, "t", has_rules=has_rules)


def test_referenced_schemas_come_before_those_that_use_them(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    def uses(name: str, subject: str) -> list[dict[str, object]]:
        return [{"name": name, "subject": subject, "version": 1}]

    server.add("ids", '"id"')
    server.add("names", '"name"', references=uses("Id", "ids"))
    server.add("t", '"t"', references=uses("Name", "names") + uses("Id", "ids"))
    latest = client.latest("t")
    assert latest is not None
    found = client.referenced(latest.schema)
    assert [each.text for each in found.values()] == ['"id"', '"name"']
    assert len(server.asked()) == 3
    # Of two references with one name, the first one counts, also where the second one is direct.
    server.add("ids", '"new id"')
    newer = {**uses("Id", "ids")[0], "version": 2}
    for references, expected in (
        ([*uses("Name", "names"), newer], ['"id"', '"name"']),
        ([newer, *uses("Name", "names")], ['"new id"', '"name"']),
    ):
        server.add("t", '"t"', references=references)
        found = client.referenced(client.latest("t").schema)  # type: ignore[union-attr]
        assert [each.text for each in found.values()] == expected
    # A JSON Schema may refer to one schema by two names, and each version is requested once.
    server.asked()
    server.add("two", '"t"', references=[*uses("id.json", "ids"), *uses("/id.json", "ids")])
    found = client.referenced(client.latest("two").schema)  # type: ignore[union-attr]
    assert [(each.name, found[each].text) for each in found] == [
        ("id.json", '"id"'),
        ("/id.json", '"id"'),
    ]
    assert server.asked() == ["GET /subjects/two/versions/latest"]
    server.add("lost", '"t"', references=uses("Gone", "nowhere"))
    with pytest.raises(DataException, match="references Gone, but the schema registry has no vers"):
        client.referenced(client.version("lost", 1).schema)  # type: ignore[union-attr]
    # A registry allows no circle, but another server may have one.
    server.add("round", '"t"', references=uses("Round", "round"))
    assert len(client.referenced(client.version("round", 1).schema)) == 1  # type: ignore[union-attr]
    for number in range(102):
        server.add(f"s{number}", '"s"', references=uses(f"S{number}", f"s{number + 1}"))
    with pytest.raises(DataException, match="references more than 100 schemas"):
        client.referenced(client.version("s0", 1).schema)  # type: ignore[union-attr]


REFUSED: dict[str, tuple[Reply, int | None, str]] = {
    "401": (error(401, 401, "Unauthorized"), 401, "it answered 401 (Unauthorized); check basic.auth.user.info or bearer.auth"),
    "403": (error(403, 40301, "denied"), 40301, "it answered 403, error code 40301 (denied); ask for the permission"),
    "404 of a proxy": (Reply(404, [b"<html>s3cret"]), 404, "it answered 404; check that schema.registry.url is the URL of a schema registry"),
    "409": (error(409, 409, "too early"), 409, "it answered 409 (too early); the schema is incompatible with an earlier version"),
    "42201": (error(422, 42201, "Invalid"), 42201, "it answered 422, error code 42201 (Invalid); the registry does not accept"),
    "42205": (error(422, 42205, "READONLY"), 42205, "error code 42205 (READONLY); the registry's mode does not allow this"),
    "redirect": (Reply(302, {}, {"Location": "http://127.0.0.1:1/"}), 302, "it answered 302; set schema.registry.url to the URL that it redirects to"),
    "bare redirect": (Reply(301, [], {"Location": "http://127.0.0.1:1/"}), 301, "it answered 301; set schema.registry.url to"),
    "garbage": (Reply(200, [b"\xff\x00 s3cret"]), None, "its response is not a JSON object"),
    "list": (Reply(200, [b"[]"]), None, "its response is not a JSON object"),
    "deep": (Reply(200, [b"[" * 100_000]), None, "its response is not a JSON object"),
    "no id": (Reply(200, {"id": "7"}), None, "its response has no id"),
    "true": (Reply(200, {"id": True}), None, "its response has no id"),
    "id of 8 bytes": (Reply(200, {"id": 2**31}), None, "its response has the id 2147483648, which is not from 0 to 2147483647"),
    "odd error": (Reply(418, {"error_code": "s3cret", "message": ["s3cret"]}), 418, "it answered 418"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_is_raised_at_once_with_its_code_and_advice(
    name: str, server: RegistryServer, client: SchemaRegistryClient, clock: Clock
) -> None:
    reply, code, words = REFUSED[name]
    server.fault = lambda call: reply
    with pytest.raises(RestClientException) as caught:
        client.register("t-value", LONG)
    said = str(caught.value)
    assert said.startswith("the schema registry cannot register a schema in subject 't-value': ")
    assert words in said
    assert "s3cret" not in said
    assert caught.value.error_code == code
    assert clock.waits == []
    # After a conflict, the client looks the schema up.
    looked_up = ["POST /subjects/t-value"] if name == "409" else []
    assert server.asked() == ["POST /subjects/t-value/versions", *looked_up]


def test_a_schema_that_is_no_schema_is_an_error(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    reference: dict[str, object] = {"name": "N", "subject": "s", "version": True}
    for reply in (
        {"schema": 7},
        {"schema": "x", "schemaType": 1},
        {"references": [1]},
        {"references": [reference]},
        {"references": 5},
        {"references": {"name": "N"}},
    ):
        body: dict[str, Any] = {"schema": "x", "id": 1, **reply}
        server.fault = lambda call, body=body: Reply(200, body)  # type: ignore[misc]
        with pytest.raises(RestClientException, match="its response has"):
            client.latest("t")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_call_is_tried_again_at_most_three_times(
    status: int, server: RegistryServer, client: SchemaRegistryClient, clock: Clock
) -> None:
    server.faults = [error(status, 50002, "busy")] * 3
    assert client.register("t", LONG).schema_id == 1
    assert clock.waits == [1.0, 2.0, 4.0]
    server.fault = lambda call: error(status, 50002, "busy")
    with pytest.raises(RestClientException, match=r"after 4 attempts: .*error code 50002 \(busy\)"):
        client.latest("t")
    assert len(server.calls) == 8


def test_a_registry_says_when_to_come_again_within_limits(
    server: RegistryServer, client: SchemaRegistryClient, clock: Clock
) -> None:
    server.faults = [Reply(429, {}, {"Retry-After": each}) for each in ("7", "0", "86400")]
    assert client.register("t", LONG).schema_id == 1
    assert clock.waits == [7.0, 0.0, 20.0]
    # The third wait of twenty seconds would end when the minute has passed.
    for wait, attempts in (("19", 4), ("20", 3)):
        server.faults = [Reply(503, {}, {"Retry-After": wait})] * attempts
        with pytest.raises(RestClientException, match=f"after {attempts} attempts"):
            client.latest("t")
    server.fault = lambda call: later(clock, 9)
    with pytest.raises(RestClientException, match="after 3 attempts"):
        client.latest("t")


def later(clock: Clock, seconds: float) -> Reply:
    """Return a reply that has taken some seconds, and demands a wait of twenty."""
    clock.now += seconds
    return Reply(503, {}, {"Retry-After": "20"})


def test_no_url_is_asked_after_a_minute(server: RegistryServer, clock: Clock) -> None:
    urls = [f"{server.url}/first", f"{server.url}/second"]
    server.fault = lambda call: later(clock, 15)
    with pytest.raises(RestClientException) as caught:
        client_of(*urls, clock=clock).latest("t")
    # The second attempt at the first URL ends after 65 seconds. The error has a reason for both.
    assert [call.path[0] for call in server.calls] == ["first", "second", "first"]
    said = str(caught.value)
    assert "after 2 attempts: " in said
    assert said.count("it answered 503") == 2


def test_an_attempt_ends_with_the_minute(server: RegistryServer, clock: Clock) -> None:
    released = threading.Event()

    def slow() -> Iterator[bytes]:
        yield b"{"
        released.wait()

    def busy(call: Call) -> Reply:
        if len(server.calls) == 1:
            return later(clock, 39.8)
        clock.now += 0.2
        return Reply(200, slow())

    server.fault = busy
    try:
        # The last fifth of a second is for the connection and the response.
        with pytest.raises(RestClientException, match=r"was not complete within 0\.1 s"):
            client_of(server.url, clock=clock, limits=HttpLimits(5.0, 5.0)).latest("t")
    finally:
        released.set()
    assert len(server.calls) == 2


def test_each_url_is_asked_before_a_wait(server: RegistryServer, clock: Clock) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert client_of(away, f"{server.url}/", clock=clock).register("t", LONG).schema_id == 1
        assert clock.waits == []
        server.fault = lambda call: error(500, 50001, "store")
        with pytest.raises(RestClientException) as caught:
            client_of(away, server.url, clock=clock).latest("t")
    said = str(caught.value)
    assert (
        f"{away}: it cannot be reached: Connection refused; {server.url}: it answered 500" in said
    )
    assert caught.value.status is None
    assert clock.waits == [1.0, 2.0, 4.0]


def test_a_slow_registry_and_an_endless_body_have_an_end(
    server: RegistryServer, clock: Clock
) -> None:
    def endless(call: Call) -> Reply:
        return Reply(200, iter(lambda: b" " * 65_536, b""))

    server.fault = endless
    with pytest.raises(RestClientException) as refused:
        client_of(server.url, clock=clock).latest("t")
    # A retry would get the same response.
    assert len(server.calls) == 1
    assert clock.waits == []
    assert str(refused.value) == (
        "the schema registry cannot get the latest version of subject 't': "
        f"{server.url}: its response is larger than {MOST_BYTES} bytes"
    )
    released = threading.Event()

    def slow() -> Iterator[bytes]:
        yield b"{"
        released.wait()

    server.fault = lambda call: Reply(200, slow())
    try:
        with pytest.raises(
            RestClientException, match=r"its response was not complete within 0.1 s"
        ):
            client_of(server.url, clock=clock, limits=HttpLimits(30.0, 0.1)).latest("t")
    finally:
        released.set()
    assert len(server.calls) == 5


def test_a_schema_may_have_megabytes(server: RegistryServer) -> None:
    symbols = [f"SYMBOL_{number:09}" for number in range(200_000)]
    text = json.dumps({"type": "enum", "name": "E", "symbols": symbols})
    assert len(text) > 3 * MOST_BYTES
    server.add("t", text)
    found = SchemaRegistryClient([RegistryUrl(server.url, server.url)], lambda url: {}).latest("t")
    assert found is not None
    assert found.schema.text == text


def test_ids_and_texts_are_as_json_has_them(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    text = json.dumps({"type": "enum", "name": "E", "symbols": ["A"], "doc": "é😀"})
    assert client.register("t", Schema(text, AVRO)).schema_id == 1
    found = client.schema_of_id(1)
    assert found is not None
    assert found.schema.text == text


def test_guids_are_those_of_the_registry(
    server: RegistryServer, client: SchemaRegistryClient
) -> None:
    assert client.register("t", LONG).guid == ""
    server.has_guids = True
    found = [client.register("t", LONG), client.lookup("t", LONG), client.latest("t")]
    found += [client.version("t", 1), client.schema_of_id(1)]
    assert [each and each.guid for each in found] == [guid_of(1)] * 5
    # A write that needs no GUID goes on without a valid one.
    wrong: object
    for wrong in ("", "x", 7, ["x"]):
        answer = {"schema": LONG.text, "id": 7, "guid": wrong}
        server.faults = [Reply(200, answer)] * 2
        assert client.register("t", LONG) == RegisteredSchema(LONG, 7, "t")
        assert client.latest("t") == RegisteredSchema(LONG, 7)


def test_waits_differ_between_clients(server: RegistryServer) -> None:
    def waits(seed: int) -> list[float]:
        clock = Clock()
        urls = [RegistryUrl(server.url, "x")]
        server.fault = lambda call: error(503, 503, "")
        asking: Callable[[], object] = lambda: SchemaRegistryClient(  # noqa: E731
            urls, lambda url: {}, clock=clock.time, sleep=clock.sleep, random=Random(seed)
        ).latest("t")
        with pytest.raises(RestClientException):
            asking()
        return clock.waits

    first, second = waits(1), waits(2)
    assert first != second
    assert all(0 <= wait <= most for wait, most in zip(first, (1, 2, 4), strict=True))


@pytest.mark.parametrize(
    "authorization", [basic_authorization("alice", "hunter2", None), "Bearer hunter2"]
)
@pytest.mark.parametrize("status", [401, 503])
def test_a_registry_that_sends_the_credentials_back_does_not_show_them(
    server: RegistryServer, clock: Clock, authorization: str, status: int
) -> None:
    sent = authorization.partition(" ")[2]
    server.fault = lambda call: error(status, status, f"hunter2 or {sent} is wrong")
    client = SchemaRegistryClient(
        [RegistryUrl(server.url, "r")],
        lambda url: {"Authorization": authorization},
        limits=LIMITS,
        clock=clock.time,
        sleep=clock.sleep,
    )
    with pytest.raises(RestClientException, match=r"\(\*\*\* or \*\*\* is wrong\)"):
        client.latest("t-value")
