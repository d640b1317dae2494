"""produce.py: every format, found again by verify.py; configuration; what cannot be done."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest
from support.brokers.kafka_cluster import KafkaCluster
from support.oracles.readers import create_topic, read_with_kafka_python
from support.spark.job_server import Ended

from .conftest import RunMany

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

ROWS = 300
START = datetime(2024, 3, 1, tzinfo=UTC)
FORMATS = ("parquet", "csv", "json", "orc", "text")


def start_of(number: int) -> datetime:
    return START.replace(minute=number % 60, hour=number % 24)


def rows() -> list[dict[str, Any]]:
    """Rows with nulls, empty text and letters of more than one byte."""
    return [
        {
            "id": number,
            "name": None if number % 7 == 0 else f"ñame-{number % 40}",
            "place": "" if number % 5 == 0 else f"Łódź {number}",
            "amount": number / 4,
            "at": start_of(number),
        }
        for number in range(ROWS)
    ]


def line(number: int) -> str:
    return f"line {number}: ünïcode, 'quotes' and ,commas"


def write_sources(folder: Path) -> dict[str, Path]:
    """Write the rows in every format."""
    kind = pa.schema(
        {
            "id": pa.int64(),
            "name": pa.string(),
            "place": pa.string(),
            "amount": pa.float64(),
            "at": pa.timestamp("us", "UTC"),
        }
    )
    table = pa.Table.from_pylist(rows(), kind)
    paths = {name: folder / f"rows.{name}" for name in ("parquet", "csv", "json", "orc")}
    nested = table.append_column("nested", pa.array([{"a": [n]} for n in range(ROWS)]))
    pyarrow.parquet.write_table(nested.append_column("raw", raw_column()), paths["parquet"])
    pyarrow.csv.write_csv(table, paths["csv"])
    pyarrow.orc.write_table(table, paths["orc"])
    lines = (json.dumps(row, default=str, ensure_ascii=False) for row in rows())
    paths["json"].write_text("\n".join(lines))
    paths["text"] = folder / "lines.txt"
    paths["text"].write_text("\n".join(map(line, range(ROWS))))
    return paths


def raw_column() -> pa.Array:
    return pa.array([None if n % 3 == 0 else bytes([n % 256, 0, 255]) for n in range(ROWS)])


def columns_of(kind: str) -> list[str]:
    """Return the arguments that make records of a source."""
    if kind == "text":
        return ["--key", "value"]
    columns = ["--key", "name,id" if kind == "csv" else "name"]
    columns += ["--headers", "name,raw,nested" if kind == "parquet" else "name,place"]
    # Spark reads times in JSON as text by default.
    columns += ["--read-option", "inferTimestamp=true"] if kind == "json" else []
    return [*columns, "--timestamp", "at"]


class Outcome(NamedTuple):
    """The results of all jobs."""

    produced: dict[str, Ended]
    verified: dict[str, Ended]
    others: dict[str, Ended]
    bootstrap: str
    folder: Path


@pytest.fixture(scope="module")
def outcome(
    run_many: RunMany, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """All jobs of this module, run in one JVM."""
    folder = tmp_path_factory.mktemp("batch")
    sources = write_sources(folder)
    to_kafka = ["--bootstrap", kafka.bootstrap, "--topic"]
    plan: dict[tuple[str, str], list[str]] = {}
    for kind, path in sources.items():
        create_topic(kafka.bootstrap, f"batch-{kind}", 3)
        report = str(folder / f"{kind}-report.json")
        job = ["--source", str(path), *columns_of(kind), *to_kafka, f"batch-{kind}"]
        plan["produced", kind] = ["produce.py", *job, "--option", f"reportPath={report}"]
        plan["verified", kind] = ["verify.py", *job, "--report", report]
    for name, job in _other_jobs(folder, sources, kafka.bootstrap).items():
        plan["others", name] = job
    ended = dict(zip(plan, run_many(list(plan.values())), strict=True))

    def of(part_name: str) -> dict[str, Ended]:
        return {name: end for (part, name), end in ended.items() if part == part_name}

    return Outcome(of("produced"), of("verified"), of("others"), kafka.bootstrap, folder)


def _other_jobs(folder: Path, sources: dict[str, Path], bootstrap: str) -> dict[str, list[str]]:
    for topic in ("config-file", "config-line", "any-case", "table"):
        create_topic(bootstrap, topic, 2)
    config = folder / "user.properties"
    config.write_text(
        "! Java's own syntax: a comment, a continued line, an escape, a colon\n"
        f"bootstrap.servers = \\\n    {bootstrap}\n"
        "topic: config-\\u0066ile\n"
        "compression.type=none\n"
    )
    text = ["--source", str(sources["text"])]
    line_wins = ["--topic", "config-line", "--option", "compression.type=zstd"]
    report = ["--option", f"reportPath={folder / 'config-line.json'}"]
    file_report = ["--option", f"reportPath={folder / 'config-file.json'}"]
    parquet = ["--source", str(sources["parquet"])]
    there = ["--bootstrap", bootstrap, "--topic", "table"]
    create_table = f"CREATE TABLE people USING parquet LOCATION '{sources['parquet']}'"
    table = ["--source", "people", "--format", "table", *there]
    raising = ["--option", "partitioner.class=operator.neg"]
    any_case = ["--option", "TOPIC=any-case", "--option", "Compression.TYPE=zstd"]
    any_case += ["--option", "ACKS=1", "--option", f"reportpath=file:{folder / 'any-case.json'}"]
    malformed = folder / "malformed.properties"
    malformed.write_text("client.id=\\u00zz\n")
    damaged = folder / "damaged.parquet"
    damaged.write_bytes(b"PAR1" * 100)
    return {
        "config line": ["produce.py", *text, "--config", str(config), *line_wins, *report],
        "config file": ["produce.py", *text, "--config", str(config), *file_report],
        "config verify": ["verify.py", *text, "--config", str(config)],
        "create table": ["sql", create_table],
        "table": ["produce.py", *table, "--value", "nested"],
        "table verify": ["verify.py", *table, "--value", "nested"],
        "any case": ["produce.py", *text, "--config", str(config), *any_case],
        "malformed config": ["produce.py", *text, "--config", str(malformed)],
        "no such column": ["produce.py", *parquet, "--key", "nam", *there],
        "wrong timestamp": ["produce.py", *parquet, "--timestamp", "name", *there],
        "no such option": ["produce.py", *parquet, *there, "--option", "batch.sizee=1"],
        "raising partitioner": ["produce.py", *parquet, *there, *raising],
        "no such source": ["produce.py", "--source", str(folder / "none.csv"), *there],
        "damaged source": ["produce.py", "--source", str(damaged), *there],
        "no such topic": ["verify.py", *parquet, "--bootstrap", bootstrap, "--topic", "none"],
    }  # fmt: skip


@pytest.mark.parametrize("kind", FORMATS)
def test_what_produce_writes_verify_finds(outcome: Outcome, kind: str) -> None:
    produced, verified = outcome.produced[kind], outcome.verified[kind]
    assert produced.code == 0, produced.output
    assert f"wrote {ROWS} rows" in produced.output
    assert verified.code == 0, verified.output
    digests = [text for text in verified.lines if "records, digest" in text]
    assert len(digests) == 2
    assert digests[0].removeprefix("source:").strip() == digests[1].removeprefix("topic:").strip()


def test_columns_become_key_value_headers_and_timestamp(outcome: Outcome) -> None:
    found = read_with_kafka_python(outcome.bootstrap, "batch-parquet")
    by_id = {json.loads(record.value or b"")["id"]: record for record in found}
    raw = raw_column().to_pylist()
    assert sorted(by_id) == list(range(ROWS))
    for row in rows():
        record = by_id[row["id"]]
        name = None if row["name"] is None else row["name"].encode()
        assert record.key == name
        nested = b'{"a":[%d]}' % row["id"]
        assert record.headers == (("name", name), ("raw", raw[row["id"]]), ("nested", nested))
        assert record.timestamp_ms == int(row["at"].timestamp() * 1000)
        assert json.loads(record.value or b"").get("place") == row["place"]


def test_columns_of_a_key_are_joined_and_null_counts_as_empty(outcome: Outcome) -> None:
    found = read_with_kafka_python(outcome.bootstrap, "batch-csv")
    # CSV does not tell an empty field from null; the names are never empty.
    expected = [f"{row['name'] or ''}|{row['id']}".encode() for row in rows()]
    assert sorted(record.key or b"" for record in found) == sorted(expected)


def test_a_text_file_gives_its_lines(outcome: Outcome) -> None:
    found = read_with_kafka_python(outcome.bootstrap, "batch-text")
    assert sorted(record.value or b"" for record in found) == sorted(
        line(number).encode() for number in range(ROWS)
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_the_report_tells_partitions_and_offsets(outcome: Outcome, kind: str) -> None:
    counts: dict[int, list[int]] = {}
    for record in read_with_kafka_python(outcome.bootstrap, f"batch-{kind}"):
        counts.setdefault(record.partition, []).append(record.offset)
    assert sum(map(len, counts.values())) == ROWS
    for number, offsets in counts.items():
        split_lines = [text.split() for text in outcome.produced[kind].lines]
        row = next(words for words in split_lines if words[:1] == [str(number)])
        assert [row[1], row[3], row[4]] == [
            str(len(offsets)),
            str(min(offsets)),
            str(max(offsets)),
        ]


def test_the_command_line_wins_over_the_config_file(outcome: Outcome) -> None:
    assert outcome.others["config line"].code == 0, outcome.others["config line"].output
    report = json.loads((outcome.folder / "config-line.json").read_text())
    assert {each["topic"] for each in report["partitions"]} == {"config-line"}
    assert report["compressed_bytes"] < report["bytes"] / 2  # compressed
    assert len(read_with_kafka_python(outcome.bootstrap, "config-line")) == ROWS


def test_the_config_file_is_read_as_java_reads_it(outcome: Outcome) -> None:
    assert outcome.others["config file"].code == 0, outcome.others["config file"].output
    report = json.loads((outcome.folder / "config-file.json").read_text())
    assert {each["topic"] for each in report["partitions"]} == {"config-file"}
    assert report["compressed_bytes"] > report["bytes"]  # not compressed
    assert outcome.others["config verify"].code == 0, outcome.others["config verify"].output


def test_upper_and_lower_case_are_the_same_in_names_of_options(outcome: Outcome) -> None:
    assert outcome.others["any case"].code == 0, outcome.others["any case"].output
    assert f"wrote {ROWS} rows" in outcome.others["any case"].output
    report = json.loads((outcome.folder / "any-case.json").read_text())
    assert {each["topic"] for each in report["partitions"]} == {"any-case"}
    assert report["compressed_bytes"] < report["bytes"] / 2  # by the command line; none by the file


def test_a_config_file_that_java_cannot_read_is_named(outcome: Outcome) -> None:
    ended = outcome.others["malformed config"]
    assert ended.code == 2
    assert ended.output == (
        f"produce.py: --config {outcome.folder / 'malformed.properties'} cannot be read as Java "
        "properties: Malformed \\uxxxx encoding.\n"
    )


def test_a_table_is_a_source(outcome: Outcome) -> None:
    assert outcome.others["table"].code == 0, outcome.others["table"].output
    assert outcome.others["table verify"].code == 0, outcome.others["table verify"].output
    found = read_with_kafka_python(outcome.bootstrap, "table")
    assert sorted(json.loads(record.value or b"")["a"][0] for record in found) == list(range(ROWS))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no such column", "produce.py: --key nam: the source has no such column; its columns are"),
        ("wrong timestamp", "produce.py: --timestamp name is of type string: expected timestamp"),
        (
            "no such option",
            "produce.py: kafka.batch.sizee is not an option of the Kafka producer; did you mean",
        ),
        (
            "raising partitioner",
            "produce.py: neg, specified in kafka.partitioner.class, raised TypeError",
        ),
        ("no such source", "produce.py: [PATH_NOT_FOUND] Path does not exist: file:"),
        ("damaged source", "produce.py: org.apache.spark.SparkException: [FAILED_READ_FILE"),
        ("no such topic", "verify.py: topic none at"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(outcome: Outcome, name: str, sentence: str) -> None:
    ended = outcome.others[name]
    assert ended.code == 2
    before = ("writing the ", "writing /", "writing: ", "source: ")
    (said,) = [line for line in ended.output.splitlines() if not line.startswith(before)]
    assert said.startswith(sentence)
