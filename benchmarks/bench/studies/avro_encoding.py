"""The Avro encoder beside confluent-kafka's AvroSerializer: CPU per row, and the cost of a call.

    PYTHONPATH=benchmarks:tests:jobs python -m bench.studies.avro_encoding [--rows 100000] \
        [--rounds 7]

Both encode the same Arrow column with the same schema and prefix, on one core, and their bytes are
compared first. AvroSerializer gets a dict of each row, which pyarrow makes, as in an Arrow writer.
It encodes a tenth of the rows. The least time of the rounds counts. Flat rows have ten fields, of
which two are nullable; nested rows are orders of seven items. For each limit, a line says whether
it is met.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_kafka_sink.serde.arrow_types import column_type
from spark_kafka_sink.serde.avro_encoder import encode_avro
from spark_kafka_sink.serde.avro_plan import fit
from spark_kafka_sink.serde.avro_schema import parse_schema
from spark_kafka_sink.serde.derived_avro import derive_schema
from spark_kafka_sink.serde.wire_format import schema_id_prefix

ITEMS: Final = 7
_SHARE: Final = 10
_CONTEXT: Final = SerializationContext("orders", MessageField.VALUE)


class Costs(NamedTuple):
    """CPU nanoseconds per row, and CPU milliseconds of a call with one row."""

    encoder_ns: float
    serializer_ns: float
    call_ms: float
    row_bytes: float

    @property
    def ratio(self) -> float:
        """How much less CPU the encoder takes."""
        return self.serializer_ns / self.encoder_ns


class Limit(NamedTuple):
    """A limit for one kind of rows: the figure is to be `least` or more, and `most` or less."""

    what: str
    rows: str
    figure: Callable[[Costs], float]
    least: float = -math.inf
    most: float = math.inf
    unit: str = "x"

    @property
    def text(self) -> str:
        """The limit in words."""
        if self.most == math.inf:
            return f"at least {self.least:g}{self.unit}"
        return f"at most {self.most:g}{self.unit}"


class Reached(NamedTuple):
    """The figure that was measured for a limit."""

    limit: Limit
    figure: float

    @property
    def is_met(self) -> bool:
        """Whether the figure is within the limit."""
        return self.limit.least <= self.figure <= self.limit.most


def _limits() -> Iterator[Limit]:
    for rows, least in (("flat", 40.0), ("nested", 20.0)):
        what = "AvroSerializer to the encoder, CPU a row"
        yield Limit(what, rows, lambda costs: costs.ratio, least=least)
        what = "CPU of a call with one row"
        yield Limit(what, rows, lambda costs: costs.call_ms, most=1.5, unit=" ms")


LIMITS: Final = tuple(_limits())


def reached(rows: str, found: Costs) -> list[Reached]:
    """Return the figures for all limits of one kind of rows: flat or nested."""
    return [Reached(each, each.figure(found)) for each in LIMITS if each.rows == rows]


def flat_rows(rows: int) -> pa.StructArray:
    """Return rows of ten fields: three integers, four texts, a double, a boolean and a time."""
    random = np.random.default_rng(1)
    numbers = np.arange(rows)
    columns = {
        "id": pa.array(numbers + 10**9),
        "quantity": pa.array((numbers % 500).astype(np.int32)),
        "store": pa.array((numbers % 9000).astype(np.int32), mask=numbers % 10 == 0),
        "name": _texts("customer ", numbers),
        "city": _texts("city ", numbers),
        "note": pa.array(_texts("a note of ", numbers).to_pylist(), mask=numbers % 5 == 0),
        "sku": _texts("sku", numbers),
        "price": pa.array(random.random(rows) * 100),
        "ok": pa.array(numbers % 2 == 0),
        "at": pa.array(16 * 10**14 + numbers * 1_000_003, pa.timestamp("us", "UTC")),
    }
    return _struct(columns, nullable=("store", "note"))


def nested_rows(rows: int) -> pa.StructArray:
    """Return orders: structs in structs, a list of structs with lists, and a map."""
    numbers = np.arange(rows)
    items = np.arange(rows * ITEMS)
    tags = pa.array(["new", "tag"] * len(items))
    item = _struct(
        {
            "sku": _texts("sku", items),
            "count": pa.array((items % 9).astype(np.int32)),
            "price": pa.array(items / 7),
            "tags": pa.ListArray.from_arrays(np.arange(0, len(tags) + 1, 2, dtype=np.int32), tags),
        }
    )
    address = _struct({"street": _texts("street ", numbers), "city": _texts("city ", numbers)})
    customer = _struct({"name": _texts("customer ", numbers), "address": address})
    keys = pa.array(["source", "campaign"] * rows)
    return _struct(
        {
            "id": pa.array(numbers + 10**9),
            "at": pa.array(16 * 10**14 + numbers, pa.timestamp("us", "UTC")),
            "customer": customer,
            "items": pa.ListArray.from_arrays(
                np.arange(0, len(items) + 1, ITEMS, dtype=np.int32), item
            ),
            "attributes": pa.MapArray.from_arrays(
                np.arange(0, len(keys) + 1, 2, dtype=np.int32),
                keys,
                _texts("c", np.arange(len(keys))),
            ),
        }
    )


def _texts(word: str, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    return pa.array([f"{word}{number * 2654435761 % 2**28:x}" for number in numbers.tolist()])


def _struct(columns: dict[str, pa.Array], nullable: Sequence[str] = ()) -> pa.StructArray:
    fields = [
        pa.field(name, column.type, nullable=name in nullable) for name, column in columns.items()
    ]
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields)


def costs(column: pa.StructArray, rounds: int) -> Costs:
    """Measure both. Raise ValueError if their bytes differ."""
    kind = column_type(column.type)
    schema = derive_schema(kind, "value", "Value")
    plan = fit(kind, parse_schema(schema), "value")
    client = SchemaRegistryClient.new_client({"url": "mock://study"})
    naming = {"subject.name.strategy": topic_subject_name_strategy}
    serializer = AvroSerializer(client, schema, conf=naming)
    few = column.slice(0, max(1, len(column) // _SHARE))

    def row_by_row() -> list[bytes | None]:
        return [serializer(row, _CONTEXT) for row in few.to_pylist(maps_as_pydicts="strict")]

    expected = row_by_row()
    prefix = (expected[0] or b"")[: len(schema_id_prefix(0))]
    if encode_avro(plan, few, prefix).array.to_pylist() != expected:
        raise ValueError("the encoder and AvroSerializer do not write the same bytes")
    one = column.slice(0, 1)
    encoded = encode_avro(plan, column, prefix).array
    return Costs(
        encoder_ns=_least_s(lambda: encode_avro(plan, column, prefix), rounds) / len(column) * 1e9,
        serializer_ns=_least_s(row_by_row, rounds) / len(few) * 1e9,
        call_ms=_least_s(lambda: encode_avro(plan, one, prefix), rounds) * 1e3,
        row_bytes=len(encoded.buffers()[2] or b"") / len(column),
    )


def _least_s(action: Callable[[], object], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        started = time.thread_time()
        action()
        found.append(time.thread_time() - started)
    return min(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the costs of flat and of nested rows, and whether the limits are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(argv)
    pa.set_cpu_count(1)
    for name, column in (
        ("flat", flat_rows(given.rows)),
        ("nested", nested_rows(-(-given.rows // ITEMS))),
    ):
        found = costs(column, given.rounds)
        print(
            f"{name:6} {found.row_bytes:6.0f} bytes a row: encoder {found.encoder_ns:,.0f} ns, "
            f"AvroSerializer {found.serializer_ns:,.0f} ns, {found.ratio:.1f}x; "
            f"{found.call_ms:.2f} ms a call"
        )
        for one in reached(name, found):
            limit, met = one.limit, "met" if one.is_met else "not met"
            figure = f"{one.figure:.2f}{limit.unit}"
            print(f"{name:6} {limit.what}: {figure}, {limit.text}: {met}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
