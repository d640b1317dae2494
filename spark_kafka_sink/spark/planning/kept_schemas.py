"""Keeps the schemas that the driver has chosen, so that a stream need not ask for them again.

Streams and write_batch plan each micro-batch. The schemas are kept in the memory of this process,
and in files in the driver's folder, because Spark plans micro-batches in other processes, and ends
such a process after it was idle for a minute. The files contain no secret: a file's name has only a
digest of the settings by which its schema was chosen.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_kafka_sink.serde.avro_schema import ReferencedSchema
from spark_kafka_sink.spark.planning.check_cache import CheckCache
from spark_kafka_sink.spark.planning.registered_schemas import ChosenSchema
from spark_kafka_sink.spark.session import driver_folder


@dataclass(frozen=True, slots=True)
class KeptSchema:
    """A schema that was chosen for a column.

    at: when the registry was asked, in seconds since 1970. write_id: the id of the write that the
    schema was chosen for, empty for a micro-batch.
    """

    chosen: ChosenSchema
    at: float
    write_id: str = ""

    def is_fresh(self, now: float, ttl_s: float) -> bool:
        """Return whether the schema may be used without asking the registry again.

        ttl_s: for how many seconds it may be used; negative for always.
        """
        # If the clock was set back, the schema must not be used for longer.
        return ttl_s < 0 or 0 <= now - self.at < ttl_s


_kept: Final[CheckCache[str, KeptSchema]] = CheckCache()


def question(*parts: object) -> str:
    """Return a digest of the settings on which the choice of a schema depends."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def keep_schema(asked: str, kept: KeptSchema) -> None:
    """Keep a schema.

    asked: a digest that `question` has returned. If the file cannot be written, other processes ask
    the registry again.
    """
    _kept.keep(asked, kept)
    path = _path(asked)
    if path is None:
        return
    chosen = kept.chosen
    parts = [
        *(chosen.text, chosen.schema_id, chosen.guid, chosen.referenced),
        *(kept.at, kept.write_id),
    ]
    with suppress(OSError):
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(parts), "utf-8")
        partial.replace(path)


def kept_schema(asked: str) -> KeptSchema | None:
    """Return the newest schema that a process of this driver has kept, None if there is none."""
    found = [_kept.get(asked), _stored(asked)]
    return max((each for each in found if each is not None), key=lambda each: each.at, default=None)


def _stored(asked: str) -> KeptSchema | None:
    path = _path(asked)
    try:
        return None if path is None else _of_parts(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return None


def _of_parts(parts: Sequence[object]) -> KeptSchema | None:
    match parts:
        case [str(text), int(schema_id), str(guid), [*referenced], float(at), str(write_id)]:
            schemas = tuple(map(_referenced_schema, referenced))
            chosen = ChosenSchema(text, schema_id, schemas, guid=guid)
            return KeptSchema(chosen, at, write_id)
    return None


def _referenced_schema(parts: object) -> ReferencedSchema:
    match parts:
        case [str(text), str(where)]:
            return ReferencedSchema(text, where)
    raise ValueError(parts)


def _path(asked: str) -> Path | None:
    folder = driver_folder()
    return None if folder is None else folder / f".pykafka-schema-{asked[:32]}"
