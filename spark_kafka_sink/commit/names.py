"""The transactional ids of exactly-once writes: how they are built and parsed.

An owner is the combination of a prefix, an application id and a target. The target is the topic in
the option `topic`, or ``*`` if the rows have a topic column. An owner has one transactional id for
its driver, and several for each Spark partition. The ids of a Spark partition differ in a number,
the slot. Each attempt of a task uses a slot that no open transaction uses (`TaskSlot`)::

    {prefix}/{application id}/{target}                      the driver
    {prefix}/{application id}/{target}/{partition}.{slot}   an attempt of a task

``%`` and ``/`` in an application id are percent-encoded; no other character is. Prefixes and
targets cannot contain ``/``. So each id can be parsed as the id of only one owner. Ids of any other
form belong to other applications and are ignored.

All runs of an owner use the same ids. Brokers remember a transactional id for seven days, so new
ids for each run would fill their memory.
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
# A scheme and an optional authority, as in org.apache.hadoop.fs.Path.
_LOCATION: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)\Z", re.DOTALL)
_LARGEST: Final = 2**31 - 1
_SLOT: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,9})\Z")


class TaskSlot(NamedTuple):
    """The slot of a task's transactional id.

    partition: the id of the Spark partition. slot: the number of the task attempt, or the next
    higher number whose transactional id has no open transaction.
    """

    partition: int
    slot: int

    def __str__(self) -> str:
        return f"{self.partition}.{self.slot}"

    @classmethod
    def of(cls, text: str) -> TaskSlot | None:
        """Return the slot that `text` encodes, or None if it encodes no slot."""
        found = _SLOT.match(text)
        if found is None:
            return None
        partition, slot = int(found[1]), int(found[2])
        return cls(partition, slot) if max(partition, slot) <= _LARGEST else None


class Owner(NamedTuple):
    """A prefix, an application id and a target (a topic or ``*``).

    A newer run of an owner fences its older run, and an owner writes each version only once. Create
    an owner with `checked_owner`.
    """

    prefix: str
    app_id: str
    target: str

    @property
    def driver_id(self) -> str:
        """The transactional id of the driver, which is also the key of the owner's log record."""
        app_id = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], self.app_id)
        return f"{self.prefix}/{app_id}/{self.target}"

    def task_id(self, slot: TaskSlot) -> str:
        """Return the transactional id of a slot."""
        return f"{self.driver_id}/{slot}"

    def slot_of(self, transactional_id: str) -> TaskSlot | None:
        """Return the slot that an id contains. Return None if it is of no task of this owner."""
        beginning = f"{self.driver_id}/"
        if not transactional_id.startswith(beginning):
            return None
        return TaskSlot.of(transactional_id[len(beginning) :])

    def owns(self, transactional_id: str) -> bool:
        """Return whether a transactional id is the id of this owner's driver or tasks."""
        return transactional_id == self.driver_id or self.slot_of(transactional_id) is not None

    def __str__(self) -> str:
        where = "topics of the topic column" if self.target == ANY_TOPIC else f"topic {self.target}"
        prefix = "" if self.prefix == DEFAULT_PREFIX else f", txnIdPrefix {self.prefix!r}"
        return f"txnAppId {self.app_id!r} ({where}{prefix})"


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
    """Raise ConfigException if `prefix` is not a valid value of the option `txnIdPrefix`."""
    if _PREFIX.match(prefix) is None:
        message = (
            f"option txnIdPrefix is {prefix!r}: expected 1 to {MAX_PREFIX_LENGTH} of the "
            "characters a-z A-Z 0-9 . _ -"
        )
        raise ConfigException(message)


def check_app_id(app_id: str) -> None:
    """Raise ConfigException if `app_id` is not a valid value of the option `txnAppId`."""
    try:
        size = len(app_id.encode())
    except UnicodeEncodeError as error:
        message = f"option txnAppId is {app_id!r}: it cannot be encoded as UTF-8 ({error.reason})"
        raise ConfigException(message) from None
    if not 1 <= size <= MAX_APP_ID_BYTES:
        message = f"option txnAppId has {size} bytes of UTF-8: expected 1 to {MAX_APP_ID_BYTES}"
        raise ConfigException(message)


def read_id(transactional_id: str) -> tuple[Owner, TaskSlot | None] | None:
    """Return the owner and the slot in a transactional id.

    The slot is None for a driver's id. Return None if the id does not have the form that this
    module describes.
    """
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
    """Return the application id of a stream without `txnAppId`: a hash of its checkpoint location.

    The path is normalized first: ``.`` and ``..`` are resolved, and double slashes and a slash at
    the end are removed. The case of the scheme makes no difference. ``file:/x``, ``file:///x`` and
    ``file://host/x`` have the same id as ``/x``, because a host is ignored if the scheme is
    ``file``. Any other spelling has a different id, even if Hadoop finds the same directory with
    it. Examples are a relative path, an explicit default port, a location that omits the default
    file system, and a symbolic link.
    """
    found = _LOCATION.match(location)
    scheme, authority, path = ("", "", location) if found is None else found.groups(default="")
    # An empty path after an authority is the root.
    path = path if path or not authority else "/"
    path = posixpath.normpath("/" + path.lstrip("/") if path.startswith("/") else path)
    scheme = scheme.lower()
    where = "" if scheme in ("", "file") else f"{scheme}://{authority}"
    return hashlib.sha256(f"{where}{path}".encode(errors="surrogatepass")).hexdigest()
