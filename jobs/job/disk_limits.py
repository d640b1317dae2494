"""Limits per partition, with which all topics of a broker take less than 1 GB of disk.

Retention deletes closed segments only, partition by partition, so a broker's disk usage grows with
its number of partitions. So with more partitions, each partition needs a smaller limit, and Kafka
has no setting for that. The program that runs the broker counts the broker's partitions, and
changes the settings of the running broker by IncrementalAlterConfigs, encoded in plain Python.
"""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path
from typing import Final

_MIB: Final = 1 << 20
# The limit of all topics on disk, without the bytes that are written until the broker's next check.
_TOTAL: Final = 480 * _MIB
# The largest limits of a partition, which a broker with few partitions has, and the smallest size
# of a segment. A segment is large enough for any batch that a topic accepts by default: 12 bytes
# more than 1 MiB.
_SEGMENT: Final = 8 * _MIB
_KEPT: Final = 32 * _MIB
_SMALLEST_SEGMENT: Final = _MIB + (_MIB >> 4)
# With more partitions, the active segments alone would exceed the limit.
MOST_PARTITIONS: Final = 400
# Folders of internal topics begin with __; those of deleted partitions end with -delete.
_PARTITION: Final = re.compile(r"(?!__).+-\d+")
# IncrementalAlterConfigs version 0, and request header version 1.
_API_KEY: Final = 44
_BROKER: Final = 4
_SET: Final = 0
_TIMEOUT_S: Final = 30.0


class LimitsError(Exception):
    """The broker does not accept its limits; the message says why."""


def limits(partitions: int) -> dict[str, int]:
    """Return the settings of a broker with this number of partitions."""
    share = _TOTAL // max(1, partitions)
    segment = min(_SEGMENT, max(_SMALLEST_SEGMENT, share // 5))
    kept = min(_KEPT, max(0, share - segment))
    return {"log.retention.bytes": kept, "log.segment.bytes": segment}


def count_partitions(data: Path) -> int:
    """Return the number of partitions of users' topics in a data folder."""
    return sum(_PARTITION.fullmatch(each.name) is not None for each in data.iterdir())


def change(address: tuple[str, int], settings: dict[str, int]) -> None:
    """Change settings of a running broker.

    Raise LimitsError if the broker rejects the settings or does not respond.
    """
    try:
        with socket.create_connection(address, _TIMEOUT_S) as connection:
            connection.sendall(_request(settings))
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                problem = _problem(answer.read(size))
    except (OSError, struct.error) as error:
        raise LimitsError(str(error)) from None
    if problem is not None:
        raise LimitsError(problem)


def _request(settings: dict[str, int]) -> bytes:
    header = struct.pack(">hhi", _API_KEY, 0, 0) + _string("make broker")
    # One resource: the cluster-wide default of brokers, whose name is empty.
    body = struct.pack(">ib", 1, _BROKER) + _string("") + struct.pack(">i", len(settings))
    for name, value in settings.items():
        body += _string(name) + struct.pack(">b", _SET) + _string(str(value))
    request = header + body + b"\0"  # not validate_only
    return struct.pack(">i", len(request)) + request


def _problem(response: bytes) -> str | None:
    """Return the error in the only result of a response, None if there is none."""
    # The 12 bytes before the error code are the correlation id, the throttle time, and the number
    # of results.
    error, length = struct.unpack_from(">hh", response, 12)
    if not error:
        return None
    reason = response[16 : 16 + max(0, length)].decode(errors="replace")
    return reason or f"error {error}"


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
