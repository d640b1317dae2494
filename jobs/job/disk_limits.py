"""How much a broker keeps of each partition, so that all its topics stay below 1 GB of disk.

Retention deletes closed segments only, partition by partition. So the disk that a broker uses grows
with its partitions, and each must keep the less the more there are. Kafka has no such rule: the
program that runs the broker counts its partitions, and changes the settings of a running broker by
Kafka's own request. It needs nothing but Python for that.
"""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path
from typing import Final

_MIB: Final = 1 << 20
# What all topics may have on disk, but for what is written until the broker looks again.
_TOTAL: Final = 480 * _MIB
# Of a partition: what few of them have, and the least. A segment holds any batch that a topic takes
# by default, which is 12 bytes more than a MiB.
_SEGMENT: Final = 8 * _MIB
_KEPT: Final = 32 * _MIB
_SMALLEST_SEGMENT: Final = _MIB + (_MIB >> 4)
#: With more, the segments that are written to would be too many.
MOST_PARTITIONS: Final = 400
# Folders of internal topics begin with __, those of deleted partitions end with -delete.
_PARTITION: Final = re.compile(r"(?!__).+-\d+")
# IncrementalAlterConfigs of version 0, and a request's header of version 1.
_API_KEY: Final = 44
_BROKER: Final = 4
_SET: Final = 0
_TIMEOUT_S: Final = 30.0


class LimitsError(Exception):
    """The broker does not take its limits; the message says why."""


def limits(partitions: int) -> dict[str, int]:
    """Return the settings of a broker that has so many partitions."""
    share = _TOTAL // max(1, partitions)
    segment = min(_SEGMENT, max(_SMALLEST_SEGMENT, share // 5))
    kept = min(_KEPT, max(0, share - segment))
    return {"log.retention.bytes": kept, "log.segment.bytes": segment}


def count_partitions(data: Path) -> int:
    """Return how many partitions of users' topics a data folder has."""
    return sum(_PARTITION.fullmatch(each.name) is not None for each in data.iterdir())


def change(address: tuple[str, int], settings: dict[str, int]) -> None:
    """Change settings of a running broker. Raise LimitsError if it refuses or does not answer."""
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
    header = struct.pack(">hhi", _API_KEY, 0, 0) + _string("broker.py")
    # One resource: the default of all brokers, whose name is empty.
    body = struct.pack(">ib", 1, _BROKER) + _string("") + struct.pack(">i", len(settings))
    for name, value in settings.items():
        body += _string(name) + struct.pack(">b", _SET) + _string(str(value))
    request = header + body + b"\0"  # it is no trial
    return struct.pack(">i", len(request)) + request


def _problem(response: bytes) -> str | None:
    """Return what is wrong by the one result of a response, None where nothing is."""
    # Before it: correlation id, throttle time, and how many results there are.
    error, length = struct.unpack_from(">hh", response, 12)
    if not error:
        return None
    reason = response[16 : 16 + max(0, length)].decode(errors="replace")
    return reason or f"error {error}"


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
