"""librdkafka's mock cluster: brokers of another implementation, with errors on demand.

It is in the shared library of the confluent-kafka wheel (rdkafka_mock.h) and is called with ctypes.
A pushed error is the response to the next request of its API; nothing is written then. It supports
the API versions that users of confluent-kafka test with.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import files
from tempfile import TemporaryFile
from typing import Final

import confluent_kafka

from support.brokers.server import Server

PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 10, 18, 22
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
_PRODUCER: Final = 0
_POINTER, _STRING, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_INT, _INT16 = ctypes.c_int, ctypes.c_int16
_ERRORS = ctypes.POINTER(ctypes.c_int)

# Result and argument types of each function, as in rdkafka.h and rdkafka_mock.h.
_FUNCTIONS: Final = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (_INT, [_POINTER, _STRING, _STRING, _STRING, _SIZE]),
    "rd_kafka_new": (_POINTER, [_INT, _POINTER, _STRING, _SIZE]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, _INT]),
    "rd_kafka_mock_cluster_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (_STRING, [_POINTER]),
    "rd_kafka_mock_topic_create": (_INT, [_POINTER, _STRING, _INT, _INT]),
    "rd_kafka_mock_topic_set_error": (None, [_POINTER, _STRING, _INT]),
    "rd_kafka_mock_push_request_errors_array": (None, [_POINTER, _INT16, _SIZE, _ERRORS]),
    "rd_kafka_mock_clear_request_errors": (None, [_POINTER, _INT16]),
}


@cache
def _library() -> ctypes.CDLL:
    # confluent_kafka has loaded the library and its dependencies already.
    assert confluent_kafka.libversion()
    (path,) = (f for f in files("confluent-kafka") or () if f.match("librdkafka*.so*"))
    library = ctypes.CDLL(str(path.locate()))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def producer_options() -> dict[str, str]:
    """Return librdkafka's options for producers, with what its library says about each."""
    library, libc = _library(), ctypes.CDLL(None)
    libc.fdopen.restype, libc.fdopen.argtypes = _POINTER, [_INT, _STRING]
    libc.fclose.argtypes = library.rd_kafka_conf_properties_show.argtypes = [_POINTER]
    with TemporaryFile() as file:
        stream = libc.fdopen(os.dup(file.fileno()), b"w")
        library.rd_kafka_conf_properties_show(stream)
        libc.fclose(stream)
        file.seek(0)
        rows = [[cell.strip() for cell in line.decode().split("|")] for line in file]
    return {row[0]: row[-1] for row in rows if len(row) > 2 and row[1] in ("*", "P")}


class MockCluster(Server):
    """Brokers 1, 2 and so on in this process."""

    def __init__(self, brokers: int = 1) -> None:
        self._rd = _library()
        reason = ctypes.create_string_buffer(512)
        conf = self._rd.rd_kafka_conf_new()
        self._rd.rd_kafka_conf_set(conf, b"log_level", b"0", reason, len(reason))
        self._handle = self._rd.rd_kafka_new(_PRODUCER, conf, reason, len(reason))
        assert self._handle, reason.value.decode()
        self._cluster = self._rd.rd_kafka_mock_cluster_new(self._handle, brokers)

    def stop(self) -> None:
        """End the brokers."""
        self._rd.rd_kafka_mock_cluster_destroy(self._cluster)
        self._rd.rd_kafka_destroy(self._handle)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for bootstrap.servers."""
        found: bytes = self._rd.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return found.decode()

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic with one replica per partition."""
        code = self._rd.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        assert code == 0, code

    def topic_error(self, topic: str, code: int) -> None:
        """Return this error for a topic in Metadata responses; 0 ends it."""
        self._rd.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def answer_next(self, api_key: int, codes: Sequence[int]) -> None:
        """Return these error codes for the next requests of an API, one per request."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._rd.rd_kafka_mock_push_request_errors_array(self._cluster, api_key, len(codes), errors)

    def clear(self, api_key: int) -> None:
        """Remove the error codes of `answer_next` that no request has received."""
        self._rd.rd_kafka_mock_clear_request_errors(self._cluster, api_key)
