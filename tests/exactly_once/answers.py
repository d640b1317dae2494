"""Answers of brokers that a proxy changes. Each change keeps the size of the answer.

The bodies are those of flexible versions: they begin with the tagged fields of the header, which
are none, but for ApiVersions, whose header never has any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from support.brokers.fault_proxy import Change

_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
# The key of no API.
_NONE: Final = 29_999
# EndTxn 3 and later: tagged fields, the throttle time, the error.
_ERROR_OF_END_TXN: Final = 5
_LOG_APPEND_TIME_NONE: Final = -1


def end_txn_fails_with(*codes: int) -> Change:
    """Return the change that puts error codes into the next answers of EndTxn, one into each."""
    waiting = list(codes)

    def change(version: int, body: bytes) -> bytes:
        assert version >= 3
        if not waiting or _INT16.unpack_from(body, _ERROR_OF_END_TXN)[0]:
            return body
        return _with(body, _ERROR_OF_END_TXN, _INT16.pack(waiting.pop(0)))

    return change


def without_api(api_key: int) -> Change:
    """Return the change that takes an API out of an answer to ApiVersions."""
    return _of_api(api_key, lambda body, where: _with(body, where, _INT16.pack(_NONE)))


def only_up_to(api_key: int, version: int) -> Change:
    """Return the change that lowers the latest version of an API in an answer to ApiVersions."""
    return _of_api(api_key, lambda body, where: _with(body, where + 4, _INT16.pack(version)))


def _of_api(api_key: int, change: Callable[[bytes, int], bytes]) -> Change:
    def change_answer(version: int, body: bytes) -> bytes:
        assert version >= 3
        count, first = _varint(body, 2)
        # Each is a key, the first and the latest version, and no tagged fields.
        for number in range(count - 1):
            where = first + 7 * number
            if _INT16.unpack_from(body, where)[0] == api_key:
                return change(body, where)
        return body

    return change_answer


def duplicates_are_not_flagged(version: int, body: bytes) -> bytes:
    """Return an answer to Produce of one partition without its log append time."""
    assert version >= 9
    _, at = _varint(body, 1)  # topics
    if version < 13:
        length, at = _varint(body, at)
        at += length - 1
    else:
        at += 16
    _, at = _varint(body, at)  # partitions
    return _with(body, at + 4 + 2 + 8, _INT64.pack(_LOG_APPEND_TIME_NONE))


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at a place, and the place after it."""
    found = shift = 0
    while True:
        byte = body[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return found, at


def _with(body: bytes, at: int, part: bytes) -> bytes:
    return body[:at] + part + body[at + len(part) :]
