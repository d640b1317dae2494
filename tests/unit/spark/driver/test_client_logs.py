"""Spark's Python client at DEBUG: calls and requests that name a secret option are masked."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace

import pytest
from support.pure.log_handlers import Handler

from spark_kafka_sink.spark.driver.register import mask_secrets


@pytest.mark.parametrize(
    "message",
    [
        "Command to send: c\no57\noption\nskafka.sasl.jaas.config\ns... password=hunter2;\ne\n",
        'Request: options { key: "kafka.sasl.jaas.config" value: "x hunter2" }',
        "Answer received: !yskafka.ssl.keystore.password=hunter2",
        "Command to send: c\no57\noption\nskafka.ssl.KeyStore.Key\nshunter2\ne\n",
    ],
)
@pytest.mark.parametrize("name", ["py4j.clientserver", "pyspark.sql.connect.logging"])
def test_what_names_a_secret_option_is_masked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    logger = logging.getLogger(name)
    # A handler of its own: one that is added to a logger of pyspark writes JSON from then on.
    handler = Handler("", lambda: None)
    # Spark configures its loggers when it is imported, which other tests may have done. They must
    # propagate: pytest adds its own handlers to a logger that does not.
    for attribute, value in (("disabled", False), ("handlers", [])):
        monkeypatch.setattr(logger, attribute, value)
    request.addfinalizer(partial(logger.setLevel, logger.level))
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    conf = SimpleNamespace(get=lambda *_: None, set=lambda *_: None)
    for _ in range(2):
        mask_secrets(SimpleNamespace(conf=conf))  # type: ignore[arg-type] # of a session
    logger.debug(message)
    logger.debug("%s and %s", message, 1)
    logger.debug("Command to send: %s", "option topic")
    assert "hunter2" not in "".join(handler.lines)
    assert handler.lines[2] == "Command to send: option topic"
    assert len(logger.filters) == 1
