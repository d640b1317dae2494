"""Keeps the schemas that the driver has chosen, so that a stream need not choose them again.

Streams and write_batch plan each micro-batch. The schemas are kept in the memory of this process
and in files in the driver's folder. Files are needed because Spark plans micro-batches in separate
processes, and ends such a process after it was idle for a minute. The files contain no secret: a
file's name contains only a digest of the settings and column types that determine its schemas.

Several batch jobs with equal settings and column types may be planned at the same time, each by two
processes. So the newest schemas of several writes are kept, each with the id of its write. If two
processes store a schema at the same moment, the file may contain only one of the two. Then the
registry is queried once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
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

    at: when the registry was queried, in seconds since 1970. write_id: the id of the write that the
    schema was chosen for, an empty string for a micro-batch. problem: identifies the reason why no
    newer schema was chosen, an empty string if there was none.
    """

    chosen: ChosenSchema
    at: float
    write_id: str = ""
    problem: str = ""

    def is_fresh(self, now: float, ttl_s: float) -> bool:
        """Return whether the schema may be used without another query to the registry.

        ttl_s: for how many seconds the schema may be used after its query; negative for always.
        """
        # If the clock was set back, the time since `at` is not known, so query the registry.
        return ttl_s < 0 or 0 <= now - self.at < ttl_s


# For each digest, the schemas by write id, in the order in which they were kept.
_kept: Final[CheckCache[str, Mapping[str, KeptSchema]]] = CheckCache()
# How many schemas are kept for a digest: more than the jobs with equal settings that one
# application plans at the same time.
_MOST_WRITES: Final = 30
_lock: Final = threading.Lock()


def question(*parts: object) -> str:
    """Return a digest of the settings and column types on which the choice of a schema depends."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def keep_schema(asked: str, kept: KeptSchema) -> None:
    """Keep a schema in memory and in a file.

    asked: a digest that `question` has returned. If the file cannot be written, other processes
    query the registry again.
    """
    with _lock:
        every = _newest_by_write([*_stored(asked).values(), *(_kept.get(asked) or {}).values()])
        # Put it at the end, even if the clock was set back.
        every.pop(kept.write_id, None)
        every[kept.write_id] = kept
        newest = {each: every[each] for each in list(every)[-_MOST_WRITES:]}
        _kept.keep(asked, newest)
        path = _path(asked)
        if path is None:
            return
        with suppress(OSError):
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_text(json.dumps(list(map(_parts, newest.values()))), "utf-8")
            partial.replace(path)


def newest_schema(asked: str) -> KeptSchema | None:
    """Return the newest schema that any process on the driver has kept, or None."""
    found = [list(each.values())[-1] for each in (_kept.get(asked), _stored(asked)) if each]
    return max(found, key=_asked_at, default=None)


def schema_of_write(asked: str, write_id: str) -> KeptSchema | None:
    """Return the schema that any process on the driver has kept for a write, or None.

    write_id: the id of the write, an empty string if it has no id.
    """
    if not write_id:
        return None
    of_both = ((_kept.get(asked) or {}).get(write_id), _stored(asked).get(write_id))
    found = [each for each in of_both if each is not None]
    return max(found, key=_asked_at, default=None)


def _newest_by_write(every: Iterable[KeptSchema]) -> dict[str, KeptSchema]:
    """Return the newest schema of each write, by write id, in the order of the queries."""
    found: dict[str, KeptSchema] = {}
    for each in sorted(every, key=_asked_at):
        found.pop(each.write_id, None)
        found[each.write_id] = each
    return found


def _asked_at(kept: KeptSchema) -> float:
    return kept.at


def _parts(kept: KeptSchema) -> list[object]:
    chosen = kept.chosen
    of_chosen = [chosen.text, chosen.schema_id, chosen.guid, chosen.referenced]
    return [*of_chosen, kept.at, kept.write_id, kept.problem]


def _stored(asked: str) -> dict[str, KeptSchema]:
    """Return the schemas in a file, by write id; empty if the file is damaged or missing."""
    path = _path(asked)
    try:
        every = [] if path is None else json.loads(path.read_text("utf-8"))
        found = map(_of_parts, every if isinstance(every, list) else [])
        return {each.write_id: each for each in found}
    except (OSError, ValueError):
        return {}


def _of_parts(parts: object) -> KeptSchema:
    match parts:
        case [
            str(text),
            int(schema_id),
            str(guid),
            [*referenced],
            float(at),
            str(write_id),
            str(problem),
        ]:
            schemas = tuple(map(_referenced_schema, referenced))
            chosen = ChosenSchema(text, schema_id, schemas, guid=guid)
            return KeptSchema(chosen, at, write_id, problem)
    raise ValueError(parts)


def _referenced_schema(parts: object) -> ReferencedSchema:
    match parts:
        case [str(text), str(where), str(name)]:
            return ReferencedSchema(text, where, name)
    raise ValueError(parts)


def _path(asked: str) -> Path | None:
    folder = driver_folder()
    return None if folder is None else folder / f".pykafka-schema-{asked[:32]}"
