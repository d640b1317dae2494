"""The file in the driver's folder with the ids of the delegation tokens of an application.

Spark replaces idle planning processes, and several of them may plan at the same time. So the file
stores which tokens there are, when they were renewed, and the difference between the clocks of the
driver and the brokers. The file contains no secret: a new process gets the HMAC from the brokers,
which return it to the token's owner.
"""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from itertools import chain
from typing import Final, NamedTuple, Self

import msgspec

from spark_kafka_sink.auth.delegation_tokens import late_in
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import Option, TimeoutException
from spark_kafka_sink.logs import warn_once, without_path
from spark_kafka_sink.spark.session import driver_folder

logger = logging.getLogger(__name__)

_FILE: Final = ".pykafka-delegation-tokens.json"
_PAUSE_S: Final = 0.05


class Owner(NamedTuple):
    """The credentials and the cluster for which a token is shared.

    login: the options as the user wrote them, and the result of `login_identity`. resolved: a
    digest of the options with their references (``${…}``) resolved.
    """

    login: bytes
    resolved: str


class Note(msgspec.Struct, frozen=True):
    """The entry for one token in the file.

    ahead_ms: how far the driver's clock is ahead of the brokers' clock. renewed_ms: when the token
    was created or last renewed. expires_ms: when the token expires, by the driver's clock.
    retry_at_ms: when to try the renewal again if the current or the last attempt fails.
    """

    token_id: str
    ahead_ms: int
    renewed_ms: int
    expires_ms: int
    retry_at_ms: int = 0

    @property
    def due_ms(self) -> float:
        """When to renew the token while its tasks run."""
        return max(late_in(self.renewed_ms, self.expires_ms), self.retry_at_ms)


class Notes(msgspec.Struct):
    """The content of the file of tokens.

    tokens: the entries for shared tokens, by two salted hashes: one of the login and one of the
    owner. Each list contains the replaced tokens, followed by the current one. jobs: the entries
    for tokens of jobs, by the id of the write.
    """

    salt: str
    tokens: dict[str, list[Note]]
    jobs: dict[str, list[Note]]

    @classmethod
    def read(cls, file: FileIO | None) -> Self:
        """Return the content of a file. If it is empty, invalid or None, return empty content."""
        if file is not None:
            with suppress(msgspec.MsgspecError):  # an incomplete write
                return msgspec.json.decode(file.read(), type=cls)
        return cls(secrets.token_hex(16), {}, {})

    def shared(self, owner: Owner) -> Note | None:
        """Return the entry for the current token of an owner, or None if there is none."""
        return next(reversed(self.tokens.get(self._name(owner), [])), None)

    def share(self, owner: Owner, note: Note) -> None:
        """Set the entry for the current token of an owner."""
        name = self._name(owner)
        others = [each for each in self.tokens.get(name, []) if each.token_id != note.token_id]
        self.tokens[name] = [*others, note]

    def of_login(self, login: bytes) -> list[Note]:
        """Return the entries for the shared tokens of all owners with this login."""
        begin = f"{self._hash(login)}."
        found = [notes for name, notes in self.tokens.items() if name.startswith(begin)]
        return [*chain.from_iterable(found)]

    def replace(self, old: Note, new: Note | None) -> bool:
        """Replace or remove an entry, and return whether it was there."""
        for notes in (*self.tokens.values(), *self.jobs.values()):
            if old in notes:
                at = notes.index(old)
                notes[at : at + 1] = [] if new is None else [new]
                return True
        return False

    def remove(self, token_id: str) -> None:
        """Remove the entry for a shared token."""
        self.tokens = _only(self.tokens, lambda each: each.token_id != token_id)

    def remove_expired(self, now_ms: int) -> None:
        """Remove the entries of expired tokens."""
        self.tokens = _only(self.tokens, lambda each: now_ms < each.expires_ms)
        self.jobs = _only(self.jobs, lambda each: now_ms < each.expires_ms)

    def write(self, file: FileIO | None) -> None:
        """Replace the content of the file. If that fails, keep the content that it had."""
        if file is None:
            return
        size = os.fstat(file.fileno()).st_size
        before = os.pread(file.fileno(), size, 0)
        try:
            _overwrite(file, msgspec.json.encode(self))
        except OSError as error:
            # This needs no more space than the file had.
            with suppress(OSError):
                _overwrite(file, before)
            _warn_of_file(error)

    def _name(self, owner: Owner) -> str:
        return f"{self._hash(owner.login)}.{self._hash(owner.login + owner.resolved.encode())}"

    def _hash(self, text: bytes) -> str:
        return hmac.digest(bytes.fromhex(self.salt), text, "sha256").hex()


def _only(table: dict[str, list[Note]], is_kept: Callable[[Note], bool]) -> dict[str, list[Note]]:
    """Return the entries that `is_kept` accepts. Remove names without such entries."""
    kept = {name: [*filter(is_kept, notes)] for name, notes in table.items()}
    return {name: notes for name, notes in kept.items() if notes}


def _overwrite(file: FileIO, content: bytes) -> None:
    file.seek(0)
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
    file.truncate(len(content))


@contextmanager
def locked_file(config: ProducerConfig) -> Iterator[FileIO | None]:
    """Open the application's file and lock it for this process. Yield None if that fails.

    Raise TimeoutException if other processes hold the lock for kafka.max.block.ms.
    """
    descriptor = _open()
    if descriptor is None:
        yield None
        return
    deadline = time.monotonic() + config.max_block_ms / 1000
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    limit = Option("max.block.ms", config.max_block_ms)
                    message = (
                        "another process of this application is still creating or renewing a "
                        f"delegation token after {limit}"
                    )
                    raise TimeoutException(message) from None
                time.sleep(_PAUSE_S)
            except OSError as error:  # for example, the file system has no locks
                _warn_of_file(error)
                yield None
                return
            else:
                break
        yield file


def unlocked_notes() -> Notes:
    """Return the content of the file without locking it; empty content while it is written."""
    descriptor = _open()
    if descriptor is None:
        return Notes.read(None)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return Notes.read(file)


def _open() -> int | None:
    folder = driver_folder()
    if folder is None:  # no SparkContext runs
        return None
    try:
        return os.open(folder / _FILE, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        _warn_of_file(error)
        return None


def _warn_of_file(error: OSError) -> None:
    warn_once(
        logger,
        "the file with the id of the delegation token cannot be written on the driver "
        f"({without_path(error)}): each process that plans micro-batches creates its own token",
    )
