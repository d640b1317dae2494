"""SchemaRegistryClient with Apicurio Registry: its calls, and how the registry refuses them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from fastavro.schema import to_parsing_canonical_form
from support.brokers.apicurio import Registry

from spark_kafka_sink.errors import RestClientException
from spark_kafka_sink.schema_registry.schema_registry_client import (
    RegistryUrl,
    SchemaRegistryClient,
)
from spark_kafka_sink.schema_registry.schemas import AVRO, JSON, Schema, SchemaReference

pytestmark = pytest.mark.long(reason="it needs Apicurio Registry, which make test-registry fetches")

CLIENTS: Final = 4


def client_of(url: str) -> SchemaRegistryClient:
    """Return a client without credentials."""
    return SchemaRegistryClient([RegistryUrl(url, url)], lambda address: {})


def record(name: str, *fields: object, indent: int | None = None) -> Schema:
    """Return the schema of a record with a field `id` and more fields."""
    schema = {"type": "record", "name": name, "fields": [{"name": "id", "type": "long"}, *fields]}
    return Schema(json.dumps(schema, indent=indent))


NOTE = {"name": "note", "type": ["null", "string"], "default": None}
REQUIRED = {"name": "required", "type": "string"}


def canonical(text: str) -> str:
    """Return an Avro schema in the canonical form of Avro's specification.

    3.3.3 returns the name of a record as its namespace and the rest of its name.
    """
    return to_parsing_canonical_form(json.loads(text))


def test_a_schema_has_one_id_in_all_calls(any_registry: Registry, new_name: str) -> None:
    client = client_of(any_registry.url)
    first, second = record(new_name), record(new_name, NOTE)
    first_id = client.register(new_name, first).schema_id
    assert client.register(new_name, first).schema_id == first_id
    assert client.register(f"{new_name}-value", first).schema_id == first_id
    second_id = client.register(new_name, second).schema_id
    assert second_id != first_id
    found = [
        client.version(new_name, 1),
        client.schema_of_id(first_id),
        client.lookup(new_name, first),
        client.latest(new_name),
        client.version(new_name, 2),
        client.lookup(new_name, second),
    ]
    schemas = [each.schema if each else None for each in found]
    assert [each and canonical(each.text) for each in schemas] == [
        canonical(each.text) for each in [first] * 3 + [second] * 3
    ]
    assert {each and each.schema_type for each in schemas} == {AVRO}
    assert [each and each.schema_id for each in found] == [first_id] * 3 + [second_id] * 3


def test_clients_that_register_one_schema_at_once_get_one_id(
    any_registry: Registry, new_name: str
) -> None:
    all_have_asked = threading.Barrier(CLIENTS, timeout=60)

    def register(_number: int) -> int:
        client = client_of(any_registry.url)
        assert client.latest(new_name) is None
        all_have_asked.wait()
        return client.register(new_name, record(new_name)).schema_id

    with ThreadPoolExecutor(CLIENTS) as pool:
        (schema_id,) = set(pool.map(register, range(CLIENTS)))
    # 2.6.13 may make a version for each of them, all with this id.
    assert set(any_registry.ids(new_name)) == {schema_id}


def test_what_the_registry_does_not_have_is_no_error(any_registry: Registry, new_name: str) -> None:
    client = client_of(any_registry.url)
    schema = record(new_name)
    assert client.latest(new_name) is None
    assert client.lookup(new_name, schema) is None
    assert client.schema_of_id(2**31 - 1) is None
    client.register(new_name, schema)
    assert client.version(new_name, 7) is None
    assert client.lookup(new_name, record(new_name, NOTE)) is None


def test_a_refused_schema_is_an_error_with_advice(any_registry: Registry, new_name: str) -> None:
    client = client_of(any_registry.url)
    client.register(new_name, record(new_name))
    with pytest.raises(RestClientException, match="incompatible with an earlier version") as found:
        client.register(new_name, record(new_name, REQUIRED))
    assert found.value.status == 409
    with pytest.raises(RestClientException, match="does not accept the schema: correct it"):
        client.register(f"{new_name}-value", Schema('{"type": "nonsense"}'))
    assert client.latest(f"{new_name}-value") is None


def test_an_url_without_the_path_of_the_api_is_an_error_with_advice(
    any_registry: Registry, new_name: str
) -> None:
    client = client_of(any_registry.address)
    with pytest.raises(RestClientException, match=r"check that schema\.registry\.url is the URL"):
        client.latest(new_name)


def test_references_come_back(any_registry: Registry, new_name: str) -> None:
    client = client_of(any_registry.url)
    address = record(f"{new_name}Address")
    client.register(f"{new_name}Address", address)
    reference = SchemaReference(f"{new_name}Address", f"{new_name}Address", 1)
    outer = record(new_name, {"name": "address", "type": f"{new_name}Address"})
    full = Schema(outer.text, AVRO, (reference,))
    registered = client.register(new_name, full)
    assert client.register(new_name, full).schema_id == registered.schema_id
    for found in (
        client.latest(new_name),
        client.schema_of_id(registered.schema_id),
        client.lookup(new_name, full),
    ):
        assert found is not None
        assert found.schema_id == registered.schema_id
        assert found.schema.references == (reference,)
        (there,) = client.referenced(found.schema).values()
        assert canonical(there.text) == canonical(address.text)


def test_json_schemas_keep_their_type(any_registry: Registry, new_name: str) -> None:
    client = client_of(any_registry.url)
    text = json.dumps(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": new_name,
            "type": "object",
            "properties": {"id": {"type": "integer"}},
        }
    )
    registered = client.register(new_name, Schema(text, JSON))
    looked_up = client.lookup(new_name, Schema(text, JSON))
    assert looked_up is not None
    # 3.3.3 does not return the type here, so that is not compared.
    assert looked_up.schema_id == registered.schema_id
    for found in (client.latest(new_name), client.schema_of_id(registered.schema_id)):
        assert found is not None
        assert (found.schema.schema_type, found.schema_id) == (JSON, registered.schema_id)
        assert json.loads(found.schema.text) == json.loads(text)


@pytest.mark.parametrize("subject", ["{}-value", "a b/{}", "é{}"], ids=["plain", "slash", "letter"])
def test_any_subject_is_found_by_its_name(
    any_registry: Registry, new_name: str, subject: str
) -> None:
    client = client_of(any_registry.url)
    named = subject.format(new_name)
    registered = client.register(named, record(new_name))
    found = client.latest(named)
    assert found is not None
    assert (found.subject, found.schema_id) == (named, registered.schema_id)
