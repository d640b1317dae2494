"""Kafka's murmur2 hash of a whole column of keys, in numpy (Utils.murmur2 of the Java client).

The keys are hashed in parallel, word by word: first word 0 of every key, then word 1 of every key
that has one, and so on. If all keys have the same length, which is the usual case, their words are
at equal distances. Otherwise the keys are sorted by length, longest first. The keys with words left
are then always a prefix, and each step is a few numpy operations on that prefix. If fewer than
`_VECTOR_ROWS` keys have words left (one key may be a megabyte), the rest of each of these keys is
hashed with Python integers, which is faster than numpy for so few keys.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_kafka_sink.records.columns import BinaryColumn
from spark_kafka_sink.records.varint import Int64s, UInt8s

UInt32s: TypeAlias = npt.NDArray[np.uint32]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_VECTOR_ROWS: Final = 16
_POSITIVE: Final = 0x7FFFFFFF
_WORD_BYTES: Final = 4
_PADDING: Final = np.zeros(_WORD_BYTES, np.uint8)
# Indexed by the number of bytes after the last full word.
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_TAIL_FACTORS: Final = np.array([1, _M, _M, _M], np.uint32)


def murmur2(keys: BinaryColumn) -> UInt32s:
    """Return the hash of each key, uint32; the hash of a null key is meaningless."""
    lengths = keys.lengths
    starts = keys.offsets[:-1]
    if not len(lengths) or lengths.min() == lengths.max():
        return _hash(keys, starts, lengths, int(lengths[0]) if len(lengths) else 0)
    by_length = np.argsort(-lengths, kind="stable")
    result = np.empty(len(lengths), np.uint32)
    result[by_length] = _hash(keys, starts[by_length], lengths[by_length], 0)
    return result


def _hash(keys: BinaryColumn, starts: Int64s, lengths: Int64s, distance: int) -> UInt32s:
    """Hash keys that are sorted by length, longest first.

    distance: the number of bytes between the starts of successive keys, 0 if it varies.
    """
    hashes = lengths.astype(np.uint32)
    hashes ^= np.uint32(_SEED)
    words = lengths >> 2
    _mix_words(hashes, keys, starts, words, distance)
    tails = lengths & 3
    if tails.any():
        _mix_tails(hashes, keys, starts + 4 * words, tails)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def to_positive(hashes: UInt32s) -> Int64s:
    """Clear the sign bit, as the Java client does before it takes the remainder."""
    return (hashes & np.uint32(_POSITIVE)).astype(np.int64)


def _mix_words(
    hashes: UInt32s, keys: BinaryColumn, starts: Int64s, words: Int64s, distance: int
) -> None:
    """Mix all full words into the hashes; words: each key's number of full words, descending."""
    if not len(words) or not words[0]:
        return
    data = keys.data
    overlapping = _words_of(data)
    longest, shortest = int(words[0]), int(words[-1])
    counts = [len(words)] * shortest
    if longest > shortest:
        steps = np.arange(shortest + 1, longest + 1)
        counts += np.searchsorted(-words, -steps, "right").tolist()
    for step, rows in enumerate(counts):
        if rows < _VECTOR_ROWS:
            for row in range(rows):
                first = int(starts[row]) + 4 * step
                raw = data[first : first + 4 * (int(words[row]) - step)].tobytes()
                hashes[row] = _mix_one(int(hashes[row]), raw)
            return
        mixed = overlapping[_places(starts[:rows], 4 * step, distance)] * np.uint32(_M)
        mixed ^= mixed >> np.uint32(24)
        mixed *= np.uint32(_M)
        hashes[:rows] *= np.uint32(_M)
        hashes[:rows] ^= mixed


def _places(starts: Int64s, later: int, distance: int) -> slice | Int64s:
    """Return the index of one word in each key, as a slice if the distances are equal."""
    if not distance:
        return starts + later
    return slice(int(starts[0]) + later, int(starts[-1]) + later + 1, distance)


def _mix_one(value: int, words: bytes) -> int:
    for word in np.frombuffer(words, "<u4").tolist():
        mixed = (word * _M) & _MASK
        mixed ^= mixed >> 24
        mixed = (mixed * _M) & _MASK
        value = ((value * _M) & _MASK) ^ mixed
    return value


def _mix_tails(hashes: UInt32s, keys: BinaryColumn, starts: Int64s, tails: Int64s) -> None:
    """Mix the bytes after the last full word, at most three per key, into the hashes."""
    data = keys.data if len(keys.data) >= _WORD_BYTES else np.append(keys.data, _PADDING)
    # Read a word and mask it. At the end of the data, read the last full word and shift it.
    last = len(data) - _WORD_BYTES
    words = _words_of(data)
    if int(starts.max()) <= last:
        tail_words = words[starts]
    else:
        at = np.minimum(starts, last)
        tail_words = words[at] >> (8 * (starts - at)).astype(np.uint32)
    tail_words &= _TAIL_MASKS[tails]
    hashes ^= tail_words
    hashes *= _TAIL_FACTORS[tails]


def _words_of(data: UInt8s) -> UInt32s:
    """Return a view of the little-endian words that start at each byte. The words overlap."""
    return np.ndarray((len(data) - _WORD_BYTES + 1,), "<u4", data, strides=(1,))
