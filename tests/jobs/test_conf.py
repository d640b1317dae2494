"""The files of conf/: uncommented lines work, and their defaults are correct."""

from __future__ import annotations

import re

import pytest
from support.spark.job_server import ROOT

from spark_kafka_sink.config import option_fields, producer_config
from spark_kafka_sink.spark.options import SINK_DEFAULTS

CONF = ROOT / "conf"
OPTION = re.compile(r"^#?([a-z.0-9]+)=(.*)$")
WITHOUT_DEFAULT = {"bootstrap.servers", "topic"}
# A Spark task cannot own a transactional id, and the sink rejects one.
NOT_OF_THE_SINK = {"transactional.id", "transaction.timeout.ms"}
# They go together in several ways: the file points to the examples of docs/how-to/secure.md.
OF_SECURITY = ("ssl.", "sasl.", "config.providers")
# The file explicitly proposes another value.
PROPOSED = {"compression.type", "partitioner.class"}
# Alone, it is its own maximum, as the file says.
CONSTANT_ALONE = {"reconnect.backoff.ms"}


def options() -> dict[str, str]:
    """Return every option of producer.properties, uncommented."""
    lines = (CONF / "producer.properties").read_text().splitlines()
    return {found[1]: found[2] for line in lines if (found := OPTION.match(line))}


def test_no_option_is_set_until_a_user_sets_it() -> None:
    lines = (CONF / "producer.properties").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []


def test_every_option_of_the_producer_has_its_line_and_no_other() -> None:
    names = (each.encode_name for each in option_fields())
    known = {name for name in names if not name.startswith(OF_SECURITY)}
    assert options().keys() - {"topic"} == known - NOT_OF_THE_SINK
    assert "docs/how-to/secure.md" in (CONF / "producer.properties").read_text()


def test_all_options_together_are_accepted() -> None:
    given = options()
    given.pop("topic")
    config = producer_config(given, defaults=SINK_DEFAULTS)
    assert config.compression_type == "lz4"


@pytest.mark.parametrize("name", sorted(options().keys() - {"topic"}))
def test_each_option_alone_is_accepted_and_is_the_default(name: str) -> None:
    address = {"bootstrap.servers": options()["bootstrap.servers"]}
    plain = producer_config(address, defaults=SINK_DEFAULTS)
    config = producer_config(address | {name: options()[name]}, defaults=SINK_DEFAULTS)
    if name not in PROPOSED | WITHOUT_DEFAULT | CONSTANT_ALONE:
        assert config == plain


def test_every_setting_of_spark_has_a_comment_and_its_file() -> None:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    settings = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    assert all(len(setting) == 2 for setting in settings)
    assert len({name for name, _ in settings}) == len(settings)
    java = dict(settings)["spark.driver.extraJavaOptions"]
    assert (ROOT / java.partition("-Dlog4j2.configurationFile=")[2]).is_file()
    for block in "\n".join(lines).split("\n\n"):
        assert block.startswith("#")
