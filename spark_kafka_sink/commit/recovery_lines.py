"""What the command `recover` prints about the record and the transactions of an owner.

An owner is a txnAppId and its target topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from spark_kafka_sink.commit.log_record import CommitRecord, LogReading
from spark_kafka_sink.commit.outcomes import recover_command, torn_lines
from spark_kafka_sink.commit.recovery import Fate, OpenSince, Recovered


def record_lines(reading: LogReading, mask: Callable[[str], str]) -> list[str]:
    """Return lines that describe what the commit log contains about an owner.

    mask: hides the credentials in the location of a checkpoint.
    """
    record = reading.record or reading.undecided
    lines = []
    if record is not None:
        lines += _origin(record, mask)
    if reading.newer_format is not None:
        lines.append(
            f"its record at offset {reading.offset} cannot be read: {reading.newer_format}; use "
            "the newer version of spark-kafka-sink"
        )
    elif reading.record is None or not reading.record.has_written:
        lines.append("it has written nothing yet")
    else:
        written = reading.record
        noun = "row" if written.rows == 1 else "rows"
        lines.append(
            f"last written: {written.last_written}, {written.rows} {noun}, at "
            f"{time_of(written.written_at)} by the clock of the driver"
        )
    return lines


def _origin(record: CommitRecord, mask: Callable[[str], str]) -> list[str]:
    parts = {
        "application": record.application,
        "query": record.query,
        "checkpoint": mask(record.checkpoint),
    }
    said = ", ".join(f"{name} {text}" for name, text in parts.items() if text)
    return [f"Spark: {said}"] if said else []


def state_lines(found: Recovered, log_topic: str) -> list[str]:
    """Return lines that describe an owner's open, decided and lost transactions.

    log_topic: the topic of the commit log, for the commands in these lines.
    """
    lines = []
    if found.undecided:
        lines += _undecided(found, log_topic)
    if found.fates:
        lines += _decided(found)
    lines += [
        f"the state of a transaction is not known: {each.sentence}" for each in found.failures
    ]
    if found.missed is not None:
        lines.append(f"the state of some transactions is not known: {found.missed.sentence}")
    if found.lost:
        owner, record = found.found.owner, found.found.reading.record
        lines += torn_lines(owner, log_topic, record, found.lost, len(found.fates))
    if lines:
        return lines
    if found.found.open_ids is None:
        return ["no transaction is decided; which ones are open is not known"]
    return ["no transaction is open"]


def _undecided(found: Recovered, log_topic: str) -> list[str]:
    owner = found.found.owner
    abort = recover_command([f"--abort={owner.app_id}"], owner, log_topic)
    since = time_of(min(each.start_ms for each in found.undecided))
    until = time_of(max(each.start_ms + each.timeout_ms for each in found.undecided))
    return [
        f"open: {_count(found.undecided)} without a decision to commit, since {since}; brokers "
        f"abort the last at {until}. Either the job is still running, or it has died. If it has "
        f"died, its next run ends them, or this command does: {abort}"
    ]


def _decided(found: Recovered) -> list[str]:
    count = Counter(found.fates)
    said = [f"{count[fate]} {words}" for fate, words in _FATES.items() if count[fate]]
    lines = [f"decided: {len(found.fates)} transactions: {', '.join(said)}"]
    if not found.was_open:
        return lines
    since = time_of(min(each.start_ms for each in found.was_open))
    first_end = time_of(min(each.start_ms + each.timeout_ms for each in found.was_open))
    if count[Fate.OPEN]:
        return [*lines, f"open since {since}: rows are lost if nobody commits them by {first_end}"]
    return [*lines, f"{len(found.was_open)} of them were open until now, since {since}"]


_FATES: Final = {
    Fate.COMMITTED: "are committed",
    Fate.OPEN: "are still to be committed",
    Fate.LOST: "were aborted by brokers",
    Fate.IN_DOUBT: "are committed or aborted, but it can no longer be found out which",
    Fate.UNKNOWN: "have a result that is not known now",
}


def _count(transactions: Sequence[OpenSince]) -> str:
    return f"{len(transactions)} transaction{'s' if len(transactions) > 1 else ''}"


def time_of(ms: int) -> str:
    """Return a number of milliseconds since 1970 as text: a time in UTC, if it is one."""
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a record may hold any number
        return f"{ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
