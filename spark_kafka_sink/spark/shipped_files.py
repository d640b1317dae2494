"""Files that `--files` has shipped: an option may name one by its name alone.

Driver and executors keep them in different folders, so each process looks for its own.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from pyspark import SparkFiles

from spark_kafka_sink.config import ProducerConfig

_OPTIONS = ("ssl_truststore_location", "ssl_keystore_location", "sasl_kerberos_keytab")


def with_shipped_files(config: ProducerConfig) -> ProducerConfig:
    """Return the configuration with the paths that this process has for shipped files."""
    found = {}
    for option in _OPTIONS:
        name = getattr(config, option)
        # Outside of Spark's processes there is no folder for them.
        with suppress(AssertionError):
            if name and "/" not in name and Path(shipped := SparkFiles.get(name)).is_file():
                found[option] = shipped
    return msgspec.structs.replace(config, **found) if found else config
