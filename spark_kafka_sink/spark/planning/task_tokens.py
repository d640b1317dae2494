"""Delegation tokens that the driver creates for its tasks.

A batch job has its own token, which the driver expires at the end of the job. All micro-batches of
an application with the same credentials share one token. When a micro-batch is planned, the shared
token is renewed or replaced, by the rule in `auth.delegation_tokens`. While a write runs,
`renew_for_write` renews its token. Tokens that were replaced are also renewed, because running
tasks may still use them. The references (``${…}``) in credentials are resolved before credentials
are compared. So a token is not used any more if a reference changes to a different user.

Spark replaces idle planning processes, and several of them may plan at the same time. So a file in
the driver's folder stores the ids of the tokens, when they were renewed, and the difference
between the clocks of the driver and the brokers. The file contains no secret: a new process gets
the HMAC from the brokers, which return it to the token's owner.
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
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from typing import Final, Self

import msgspec

from spark_kafka_sink.admin import KafkaAdmin, login_identity, resolved_login
from spark_kafka_sink.auth.delegation_tokens import (
    DEFAULT_MECHANISM,
    FRESH_MS,
    TokenAction,
    TokenLife,
    delegation_token,
    is_fresh,
    late_in,
    with_delegation_token,
)
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.error_codes import (
    DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_OWNER_MISMATCH,
)
from spark_kafka_sink.errors import (
    ApiException,
    KafkaException,
    Option,
    SaslAuthenticationException,
    TimeoutException,
)
from spark_kafka_sink.logs import warn_once, without_path
from spark_kafka_sink.model import DelegationToken
from spark_kafka_sink.spark.committing.job_token import JobToken, encoded
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.session import driver_folder

logger = logging.getLogger(__name__)

_FILE: Final = ".pykafka-delegation-tokens.json"
_ENDED: Final = (
    DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH,
)  # fmt: skip
# The time from a failed renewal to the next attempt.
_RETRY_MS: Final = 60_000
_PAUSE_S: Final = 0.05


def _now_ms() -> int:
    return int(time.time() * 1000)


# -- the token of a job ----------------------------------------------------------------------------


@name_kafka_options()
def with_job_token(options: SinkOptions) -> tuple[SinkOptions, JobToken | None]:
    """Create a token for a batch job. Return options that use it, and an object that expires it.

    The object is None if the token cannot be expired at the end of the job. Raise the exceptions of
    the brokers, after at most kafka.max.block.ms.
    """
    config = options.producer
    with KafkaAdmin(config) as admin:
        token = admin.create_delegation_token()
    now_ms = _now_ms()
    life = TokenLife.created(token, now_ms)
    if options.write_id is not None:
        note = _Note.of(_SharedToken(life, now_ms - token.issue_timestamp_ms))
        _note_job(config, options.write_id, note)
    return _with_token(options, life.token), JobToken.keep(config, life.token)


def _with_token(options: SinkOptions, token: DelegationToken) -> SinkOptions:
    mechanism = options.delegation_token_mechanism or DEFAULT_MECHANISM
    return replace(options, producer=with_delegation_token(options.producer, token, mechanism))


# -- the token that micro-batches share ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SharedToken:
    """A token that several writes use.

    ahead_ms: how far the driver's clock is ahead of the brokers' clock. retry_at_ms: when to try
    again to renew the token after a failed renewal.
    """

    life: TokenLife
    ahead_ms: int
    retry_at_ms: int = 0

    def needs_nothing(self, now_ms: int) -> bool:
        """Return whether the token can be used now as it is, without renewal or replacement."""
        if self.life.action(now_ms) is TokenAction.KEEP:
            return True
        return self.is_valid(now_ms) and now_ms < self.retry_at_ms

    def is_valid(self, now_ms: int) -> bool:
        """Return whether the token has not expired yet."""
        return now_ms < self.life.token.expiry_timestamp_ms


# The tokens that this process knows, by credentials and cluster (`_owner`).
_shared: dict[bytes, _SharedToken] = {}


def checked_with_shared_token(
    options: SinkOptions, check: Callable[[SinkOptions], SinkOptions]
) -> SinkOptions:
    """Call `check` with options that use the application's shared token, and return its result.

    Brokers may not know a very new token yet. If they refuse an older token, someone else has
    expired it. In that case, create a new token and call `check` again. Raise the exceptions of the
    brokers.
    """
    given = _with_shared_token(options)
    try:
        return check(given)
    except SaslAuthenticationException:
        token = delegation_token(given.producer)
        if token is None or is_fresh(token, _now_ms()):
            raise
        logger.warning("the brokers refuse the delegation token %s; it is replaced", token.token_id)
        with name_kafka_options():
            _forget(options.producer, token)
    return check(_with_shared_token(options))


@name_kafka_options()
def _with_shared_token(options: SinkOptions) -> SinkOptions:
    config = options.producer
    identity = login_identity(config)
    owner = _owner(config, identity)
    token = _shared.get(owner)
    if token is None or not token.needs_nothing(_now_ms()):
        with _locked_file(config) as file:
            notes = _Notes.read(file)
            name = notes.name(owner)
            admin = partial(KafkaAdmin, config, identity=identity)
            token = _renewed(admin, token, notes.shared(name))
            notes.remove_expired(_now_ms())
            notes.share(name, _Note.of(token))
            notes.write(file)
        _remove_expired()
        _shared[owner] = token
    return _with_token(options, token.life.token)


def _forget(config: ProducerConfig, token: DelegationToken) -> None:
    """Remove a token from the cache and from the file, so that it is no longer used."""
    for owner, each in list(_shared.items()):
        if each.life.token.token_id == token.token_id:
            del _shared[owner]
    with _locked_file(config) as file:
        notes = _Notes.read(file)
        notes.remove(token.token_id)
        notes.write(file)


def _remove_expired() -> None:
    """Remove expired tokens from the cache, for example those of credentials no longer in use."""
    now_ms = _now_ms()
    for owner, each in list(_shared.items()):
        if not each.is_valid(now_ms):
            del _shared[owner]


def _renewed(
    connect: Callable[[], KafkaAdmin], token: _SharedToken | None, known: _Note | None
) -> _SharedToken:
    """Return the token to use: the token in the file, renewed if necessary, or a new token.

    token: the token that this process knows. known: the entry of the current token in the file. If
    a valid token cannot be renewed now, return it without renewal.
    """
    try:
        with connect() as admin:
            if known is not None and (token is None or _Note.of(token) != known):
                # Another process has created or renewed the token in the file.
                token = _described(admin, known)
            return _settled(admin, token)
    except KafkaException as error:
        now_ms = _now_ms()
        if token is None or not token.is_valid(now_ms):
            raise
        logger.warning(
            "the delegation token %s cannot be renewed now, and is used until it expires: %s",
            token.life.token.token_id,
            error,
        )
        return replace(token, retry_at_ms=now_ms + _RETRY_MS)


def _settled(admin: KafkaAdmin, token: _SharedToken | None) -> _SharedToken:
    """Keep, renew or replace a token, as `TokenLife.action` requires. Return the token to use."""
    action = TokenAction.REPLACE if token is None else token.life.action(_now_ms())
    if token is not None and action is TokenAction.KEEP:
        return token
    if token is not None and action is TokenAction.RENEW:
        try:
            expiry_ms = admin.renew_delegation_token(token.life.token.hmac)
        except ApiException as error:
            if error.code not in _ENDED:
                raise
        else:
            life = token.life.renewed(expiry_ms, token.ahead_ms, _now_ms())
            return _SharedToken(life, token.ahead_ms)
    created = admin.create_delegation_token()
    now_ms = _now_ms()
    return _SharedToken(TokenLife.created(created, now_ms), now_ms - created.issue_timestamp_ms)


def _described(admin: KafkaAdmin, known: _Note) -> _SharedToken | None:
    """Return the token of an entry in the file, or None if the brokers do not know the token."""
    while True:
        for token in admin.describe_delegation_token():
            if token.token_id == known.token_id:
                life = TokenLife.known(token, known.renewed_ms, known.ahead_ms)
                return _SharedToken(life, known.ahead_ms)
        # The broker may not know a very new token yet.
        if _now_ms() >= known.renewed_ms + FRESH_MS:
            return None
        time.sleep(_PAUSE_S)


_OF_LOGINS: Final = tuple(
    name
    for name in ProducerConfig.__struct_fields__
    if name.startswith(("bootstrap_", "config_", "sasl_", "security_", "ssl_"))
)


def _owner(config: ProducerConfig, identity: str) -> bytes:
    """Return bytes that identify the credentials and the cluster for which a token is shared.

    Raise the exceptions of `resolved_login`.
    """
    written = [getattr(config, name) for name in _OF_LOGINS]
    return encoded([*written, identity, resolved_login(config)])


# -- renewal while a write runs --------------------------------------------------------------------

# The shortest and the longest time in seconds between two calls of `renew_for_write`.
_FIRST_LOOK_S: Final = 1.0
_LOOK_S: Final = 60.0


@name_kafka_options()
def renew_for_write(options: SinkOptions, waited_s: float = 0.0) -> float:
    """Renew the token of a write's tasks if that is due. Return the seconds until the next call.

    Brokers renew a token up to its maximum lifetime. The process that planned the write may have
    ended, so any process of the driver may call this. waited_s: the seconds since the last call.
    Raise the exceptions of the brokers.
    """
    config, identity = options.producer, ""
    with _locked_file(config) as file:
        notes = _Notes.read(file)
    found = notes.jobs.get(options.write_id or "", [])
    if not found and notes.tokens:
        identity = login_identity(config)
        # Running tasks may still use a token that was replaced.
        found = notes.tokens.get(notes.name(_owner(config, identity)), [])
    if not found:
        return min(_LOOK_S, max(_FIRST_LOOK_S, 2 * waited_s))
    now_ms = _now_ms()
    valid = [each for each in found if now_ms < each.expires_ms]
    if not valid:
        return _LOOK_S
    note = min(valid, key=lambda each: each.due_ms)
    wait_s = (note.due_ms - now_ms) / 1000
    if wait_s > 0:
        return min(_LOOK_S, max(_FIRST_LOOK_S, wait_s))
    # The file is not locked during the calls to the brokers, because planning needs it. Because of
    # `retry_at_ms` in the file, the threads of other writes do not renew this token now.
    begun = msgspec.structs.replace(note, retry_at_ms=now_ms + _RETRY_MS)
    if _replace_note(config, note, begun):
        with KafkaAdmin(config, identity=identity) as admin:
            renewed = _renewed_note(admin, begun)
        _replace_note(config, begun, renewed)
    return _FIRST_LOOK_S


def _renewed_note(admin: KafkaAdmin, note: _Note) -> _Note | None:
    """Renew a token and return its new entry, or None if the brokers do not know the token."""
    token = _described(admin, note)
    if token is None:
        return None
    expiry_ms = admin.renew_delegation_token(token.life.token.hmac)
    life = token.life.renewed(expiry_ms, note.ahead_ms, _now_ms())
    return _Note.of(_SharedToken(life, note.ahead_ms))


def _replace_note(config: ProducerConfig, old: _Note, new: _Note | None) -> bool:
    """Replace or remove an entry of the file. Return False if another process has changed it."""
    with _locked_file(config) as file:
        notes = _Notes.read(file)
        is_there = notes.replace(old, new)
        if is_there:
            notes.write(file)
    return is_there


def forget_write(options: SinkOptions) -> None:
    """Remove from the file the token of a job that has ended."""
    if options.write_id is not None:
        _note_job(options.producer, options.write_id, None)


def _note_job(config: ProducerConfig, write_id: str, note: _Note | None) -> None:
    """Set or remove a job's entry in the file. Do nothing if the file stays locked."""
    with suppress(TimeoutException), _locked_file(config) as file:
        notes = _Notes.read(file)
        notes.remove_expired(_now_ms())
        notes.jobs.pop(write_id, None)
        if note is not None:
            notes.jobs[write_id] = [note]
        notes.write(file)


# -- the file --------------------------------------------------------------------------------------


class _Note(msgspec.Struct, frozen=True):
    """The entry for one token in the file.

    ahead_ms: as in `_SharedToken`. renewed_ms: when the token was created or last renewed.
    expires_ms: when the token expires, by the driver's clock. retry_at_ms: when to try the renewal
    again if the current attempt fails.
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

    @classmethod
    def of(cls, token: _SharedToken) -> Self:
        """Return the entry for a token."""
        life = token.life
        return cls(
            life.token.token_id, token.ahead_ms, life.renewed_ms, life.token.expiry_timestamp_ms
        )


class _Notes(msgspec.Struct):
    """The content of the file of tokens.

    tokens: the entries for shared tokens, by a salted hash of `_owner`. Each list contains the
    replaced tokens, followed by the current one. jobs: the entries for tokens of jobs, by the id of
    the write.
    """

    salt: str
    tokens: dict[str, list[_Note]]
    jobs: dict[str, list[_Note]]

    @classmethod
    def read(cls, file: FileIO | None) -> Self:
        """Return the content of a file. If it is empty, invalid or None, return empty content."""
        if file is not None:
            with suppress(msgspec.MsgspecError):  # an incomplete write
                return msgspec.json.decode(file.read(), type=cls)
        return cls(secrets.token_hex(16), {}, {})

    def shared(self, name: str) -> _Note | None:
        """Return the entry for the current token of an owner, or None if there is none."""
        return next(reversed(self.tokens.get(name, [])), None)

    def share(self, name: str, note: _Note) -> None:
        """Set the entry for the current token of an owner."""
        others = [each for each in self.tokens.get(name, []) if each.token_id != note.token_id]
        self.tokens[name] = [*others, note]

    def replace(self, old: _Note, new: _Note | None) -> bool:
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
        """Replace the content of the file."""
        if file is None:
            return
        try:
            file.seek(0)
            file.truncate()
            file.write(msgspec.json.encode(self))
        except OSError as error:
            _warn_of_file(error)

    def name(self, owner: bytes) -> str:
        """Return the salted hash under which the file stores an owner's token."""
        return hmac.digest(bytes.fromhex(self.salt), owner, "sha256").hex()


def _only(
    table: dict[str, list[_Note]], is_kept: Callable[[_Note], bool]
) -> dict[str, list[_Note]]:
    """Return the entries that `is_kept` accepts. Remove names without such entries."""
    kept = {name: [*filter(is_kept, notes)] for name, notes in table.items()}
    return {name: notes for name, notes in kept.items() if notes}


@contextmanager
def _locked_file(config: ProducerConfig) -> Iterator[FileIO | None]:
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
                        f"no delegation token within {limit}: another process of this application "
                        "is still creating or renewing one"
                    )
                    raise TimeoutException(message) from None
                time.sleep(_PAUSE_S)
            else:
                break
        yield file


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
