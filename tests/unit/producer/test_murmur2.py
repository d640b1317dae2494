"""Keys have the same hashes as in every Kafka client, for all lengths and neighbours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2
from support.oracles.record_batches import SHAPES, Shape

from spark_kafka_sink.producer.murmur2 import murmur2, to_positive
from spark_kafka_sink.producer.partitioner import hash_keys
from spark_kafka_sink.records.columns import BinaryColumn

# UtilsTest of the Java client; results as signed 32-bit numbers.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
LIBRDKAFKA = {
    b"kafka": 0xD067CF64,
    b"giberish123456789": 0x8F552B0C,
    b"1234": 0x9FC97B14,
    b"234": 0xE7C009CA,
    b"34": 0x873930DA,
    b"4": 0x5A4B5CA1,
    b"PreAmbleWillBeRemoved,ThePrePartThatIs": 0x78424F1C,
    b"reAmbleWillBeRemoved,ThePrePartThatIs": 0x4A62B377,
    b"eAmbleWillBeRemoved,ThePrePartThatIs": 0xE0E4E09E,
    b"AmbleWillBeRemoved,ThePrePartThatIs": 0x62B8B43F,
    b"": 0x106E08D9,
}
# kafka-python: the positive hash modulo 1000.
PARTITIONS_OF_1000 = {
    b"": 681,
    b"a": 524,
    b"ab": 434,
    b"abc": 107,
    b"123456789": 566,
    b"\x00 ": 742,
}

# Few long keys among many short ones are hashed by another path than many of a length, and those
# that all have one by a third.
KEYS_OF_ONE_LENGTH = st.integers(0, 24).flatmap(
    lambda length: st.lists(st.binary(min_size=length, max_size=length), min_size=16, max_size=60)
)
KEYS = KEYS_OF_ONE_LENGTH | st.lists(
    st.none()
    | st.binary(max_size=24)
    | st.builds(
        lambda byte, n: bytes([byte, 255 - byte]) * n, st.integers(0, 255), st.integers(0, 150)
    ),
    max_size=60,
)


def _hashes(keys: list[bytes]) -> list[int]:
    hashes: list[int] = murmur2(BinaryColumn.of(pa.array(keys, pa.binary()))).tolist()
    return hashes


@pytest.mark.parametrize("neighbours", [0, 40], ids=["alone", "among others"])
def test_hashes_are_those_of_other_clients(neighbours: int) -> None:
    """A key among many is hashed in step with them, a key alone on its own."""
    others = [b"x" * (length % 50) for length in range(neighbours)]
    java = _hashes([*JAVA, *others])[: len(JAVA)]
    assert [value - 2**32 * (value >> 31) for value in java] == list(JAVA.values())
    librdkafka = _hashes([*LIBRDKAFKA, *others])[: len(LIBRDKAFKA)]
    assert librdkafka == list(LIBRDKAFKA.values())


def test_positive_hashes_clear_the_sign_bit_and_are_not_absolute_values() -> None:
    hashes = np.array(_hashes(list(PARTITIONS_OF_1000)), np.uint32)
    assert (to_positive(hashes) % 1000).tolist() == list(PARTITIONS_OF_1000.values())
    extremes = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], np.uint32)
    assert to_positive(extremes).tolist() == [0, 1, 2**31 - 1, 0, 2**31 - 1]


@given(keys=KEYS, shape=SHAPES)
def test_a_column_of_keys_is_hashed_as_kafka_python_hashes_each(
    keys: list[bytes | None], shape: Shape
) -> None:
    column = BinaryColumn.of(shape.array(keys))
    hashes = murmur2(column).tolist()
    assert len(hashes) == len(keys)
    for key, value in zip(keys, hashes, strict=True):
        if key is not None:
            assert value == kafka_python_murmur2(key) & 0xFFFFFFFF


@given(keys=KEYS, shape=SHAPES)
def test_a_null_key_has_no_hash_and_any_other_a_positive_one(
    keys: list[bytes | None], shape: Shape
) -> None:
    hashes = hash_keys(BinaryColumn.of(shape.array(keys)))
    assert hashes is not None
    assert hashes.tolist() == [
        -1 if key is None else kafka_python_murmur2(key) & 0x7FFFFFFF for key in keys
    ]


@given(keys=KEYS_OF_ONE_LENGTH, nulls=st.integers(0, 3), shape=SHAPES)
def test_rows_that_a_slice_leaves_out_do_not_count(
    keys: list[bytes], nulls: int, shape: Shape
) -> None:
    """Nulls around keys of one length, with garbage of other lengths under them."""
    around: list[bytes | None] = [None] * nulls
    column = BinaryColumn.of(shape.array([*around, *keys, *around]))
    hashes = hash_keys(column.slice(nulls, nulls + len(keys)))
    assert hashes is not None
    assert hashes.tolist() == [kafka_python_murmur2(key) & 0x7FFFFFFF for key in keys]


def test_without_a_key_column_there_are_no_hashes() -> None:
    assert hash_keys(None) is None


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65])
def test_any_number_of_keys_of_any_length(rows: int, length: int, first: int) -> None:
    """The keys may also come after others in the same array."""
    keys = [bytes((row + i) % 256 for i in range(length)) for row in range(first + rows)]
    hashes = murmur2(BinaryColumn.of(pa.array(keys, pa.binary()).slice(first)))
    assert hashes.tolist() == [kafka_python_murmur2(key) & 0xFFFFFFFF for key in keys[first:]]


def test_a_large_key_among_small_ones() -> None:
    keys = [b"small"] * 40 + [bytes(range(256)) * 1024 + b"xyz"]
    assert _hashes(keys) == [kafka_python_murmur2(key) & 0xFFFFFFFF for key in keys]


def _splittable_random(count: int) -> npt.NDArray[np.uint64]:
    """Return the first numbers of Java's SplittableRandom(0)."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def test_the_java_client_s_checksum_over_a_hundred_thousand_random_keys() -> None:
    """UtilsTest.testMurmur2Checksum: 100 keys of every length from 0 to 1000."""
    lengths = np.repeat(np.arange(1001), 100)
    # A key takes words of eight bytes; the bytes of its last word are a row of their own.
    reserved = 8 * -(-lengths // 8)
    starts = np.cumsum(reserved) - reserved
    offsets = np.empty(2 * len(lengths) + 1, np.int64)
    offsets[:-1:2], offsets[1::2], offsets[-1] = starts, starts + lengths, reserved.sum()
    data = _splittable_random(int(reserved.sum()) // 8).astype("<u8").view(np.uint8)
    hashes = murmur2(BinaryColumn(data, offsets, None))[::2]
    assert int(hashes.sum(dtype=np.uint64)) == 0xC3B8CF7C99FC
