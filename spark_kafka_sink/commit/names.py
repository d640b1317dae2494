"""The transactional ids of exactly once: built, and read back exactly.

An owner is a prefix, an application id and a target. The target is the topic of the option `topic`,
or ``*`` if a column names the topics. An owner has one id for its driver, and one for each slot of
each Spark partition::

    {prefix}/{application id}/{target}                      the driver
    {prefix}/{application id}/{target}/{partition}.{slot}   an attempt of a task

``%`` and ``/`` in an application id are percent-encoded, and nothing else is. Prefixes and targets
have no ``/``. So no id of one owner is the beginning of another's, or can be read as another's. An
id that these functions do not build belongs to somebody else, and is not read.

Ids are reused by every run of an owner. Brokers remember an id for seven days, so a new id for each
run would fill their memory.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from typing import Final, NamedTuple

from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.model import TOPIC_NAME

DEFAULT_PREFIX: Final = "pykafka"
DEFAULT_LOG_TOPIC: Final = "__pykafka_commits"
ANY_TOPIC: Final = "*"
MAX_PREFIX_LENGTH: Final = 100
MAX_APP_ID_BYTES: Final = 200

_PREFIX: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_PREFIX_LENGTH}}}\Z")
_ENCODED: Final = re.compile(r"(?:[^%/]|%25|%2F)+\Z")
_ESCAPES: Final = {"%": "%25", "/": "%2F"}
_ESCAPED: Final = re.compile("[%/]")
_UNESCAPED: Final = re.compile("%25|%2F")
# A scheme, and an authority where there is one (org.apache.hadoop.fs.Path).
_LOCATION: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)\Z", re.DOTALL)
_LARGEST: Final = 2**31 - 1
_SLOT: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,9})\Z")


class TaskSlot(NamedTuple):
    """The slot of a transactional id: a Spark partition, and a number that retries may raise."""

    partition: int
    slot: int

    def __str__(self) -> str:
        return f"{self.partition}.{self.slot}"

    @classmethod
    def of(cls, text: str) -> TaskSlot | None:
        """Return the slot that is written as `text`, None if it is not one."""
        found = _SLOT.match(text)
        if found is None:
            return None
        partition, slot = int(found[1]), int(found[2])
        return cls(partition, slot) if max(partition, slot) <= _LARGEST else None


class Owner(NamedTuple):
    """An application and its target. Its runs follow each other, and it writes each version once.

    Construct one by `checked_owner`.
    """

    prefix: str
    app_id: str
    target: str

    @property
    def driver_id(self) -> str:
        """The transactional id of the driver, which is also the key of the owner's record."""
        app_id = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], self.app_id)
        return f"{self.prefix}/{app_id}/{self.target}"

    def task_id(self, slot: TaskSlot) -> str:
        """Return the transactional id of a slot."""
        return f"{self.driver_id}/{slot}"

    def slot_of(self, transactional_id: str) -> TaskSlot | None:
        """Return the slot of an id, None if it is not the id of a task of this owner."""
        beginning = f"{self.driver_id}/"
        if not transactional_id.startswith(beginning):
            return None
        return TaskSlot.of(transactional_id[len(beginning) :])

    def owns(self, transactional_id: str) -> bool:
        """Whether an id is this owner's: the driver's, or a task's."""
        return transactional_id == self.driver_id or self.slot_of(transactional_id) is not None

    def __str__(self) -> str:
        where = "the topics of a column" if self.target == ANY_TOPIC else f"topic {self.target}"
        return f"application {self.app_id!r} and {where} (prefix {self.prefix!r})"


def checked_owner(prefix: str, app_id: str, target: str) -> Owner:
    """Return the owner. Raise ConfigException if an argument is invalid.

    target: the name of a topic, or `ANY_TOPIC`.
    """
    check_prefix(prefix)
    check_app_id(app_id)
    if target != ANY_TOPIC and TOPIC_NAME.match(target) is None:
        message = f"the target is {target!r}: expected the name of a topic, or {ANY_TOPIC}"
        raise ConfigException(message)
    return Owner(prefix, app_id, target)


def check_prefix(prefix: str) -> None:
    """Raise ConfigException if a prefix is invalid."""
    if _PREFIX.match(prefix) is None:
        message = (
            f"option txnIdPrefix is {prefix!r}: expected 1 to {MAX_PREFIX_LENGTH} of the "
            "characters a-z A-Z 0-9 . _ -"
        )
        raise ConfigException(message)


def check_app_id(app_id: str) -> None:
    """Raise ConfigException if an application id is invalid."""
    try:
        size = len(app_id.encode())
    except UnicodeEncodeError as error:
        message = f"option txnAppId is {app_id!r}: it cannot be encoded as UTF-8 ({error.reason})"
        raise ConfigException(message) from None
    if not 1 <= size <= MAX_APP_ID_BYTES:
        message = f"option txnAppId has {size} bytes of UTF-8: expected 1 to {MAX_APP_ID_BYTES}"
        raise ConfigException(message)


def read_id(transactional_id: str) -> tuple[Owner, TaskSlot | None] | None:
    """Return the owner of an id, and the slot if it is a task's; None for an id of another form."""
    parts = transactional_id.split("/")
    if len(parts) not in (3, 4):
        return None
    prefix, app_id, target = parts[:3]
    is_form = (
        _PREFIX.match(prefix) is not None
        and _ENCODED.match(app_id) is not None
        and (target == ANY_TOPIC or TOPIC_NAME.match(target) is not None)
    )
    if not is_form:
        return None
    plain = _UNESCAPED.sub(lambda found: "%" if found[0] == "%25" else "/", app_id)
    owner = Owner(prefix, plain, target)
    try:
        check_app_id(plain)
    except ConfigException:
        return None
    if len(parts) == 3:
        return owner, None
    slot = TaskSlot.of(parts[3])
    return None if slot is None else (owner, slot)


def app_id_of_checkpoint(location: str) -> str:
    """Return the application id of a stream without `txnAppId`: a hash of its checkpoint's path.

    Spellings that Hadoop reads as the same path have the same id: double and final slashes, ``.``
    and ``..``, and ``file:/x`` and ``file:///x`` for ``/x``. A checkpoint that is moved, or named
    by a link, is another application.
    """
    found = _LOCATION.match(location)
    scheme, authority, path = ("", "", location) if found is None else found.groups(default="")
    path = posixpath.normpath("/" + path.lstrip("/") if path.startswith("/") else path)
    scheme = scheme.lower()
    where = "" if scheme in ("", "file") else f"{scheme}://{authority}"
    return hashlib.sha256(f"{where}{path}".encode(errors="surrogatepass")).hexdigest()
