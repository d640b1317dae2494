"""Delegation tokens that the driver creates for its tasks.

A batch job has its own token, which the driver expires at the end of the job. All micro-batches of
an application with the same credentials share one token. When a micro-batch is planned, the shared
token is renewed or replaced, by the rule in `auth.delegation_tokens`. While a write runs,
`renew_for_write` renews its token. Tokens that were replaced are also renewed, because running
tasks may still use them. The references (``${…}``) in credentials are resolved before credentials
are compared. So new micro-batches use another token after a reference has changed.

All planning processes know the tokens from a file: see `token_file`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from spark_kafka_sink.admin import KafkaAdmin, login_identity, resolved_login
from spark_kafka_sink.auth.delegation_tokens import (
    DEFAULT_MECHANISM,
    FRESH_MS,
    TokenAction,
    TokenLife,
    delegation_token,
    is_fresh,
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
    SaslAuthenticationException,
    TimeoutException,
)
from spark_kafka_sink.logs import warn_once
from spark_kafka_sink.model import DelegationToken
from spark_kafka_sink.spark.committing.job_token import JobToken, encoded
from spark_kafka_sink.spark.options import SinkOptions, name_kafka_options
from spark_kafka_sink.spark.planning.token_file import (
    Note,
    Notes,
    Owner,
    locked_file,
    unlocked_notes,
)

logger = logging.getLogger(__name__)

_ENDED: Final = (
    DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH,
)  # fmt: skip
# The longest time from a failed renewal to the next attempt.
_RETRY_MS: Final = 60_000
_PAUSE_S: Final = 0.05


def _retry_at_ms(now_ms: int, expires_ms: int) -> int:
    """Return when to try to renew a token again: in a minute, or earlier if it expires soon."""
    return now_ms + min(_RETRY_MS, (expires_ms - now_ms) // 4)


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
    kept = JobToken.keep(config, life.token)
    if options.write_id is not None:
        shared = _SharedToken(life, now_ms - token.issue_timestamp_ms)
        _note_job(config, options.write_id, shared.note)
    return _with_token(options, life.token), kept


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

    @property
    def token_id(self) -> str:
        """The id of the token."""
        return self.life.token.token_id

    @property
    def note(self) -> Note:
        """The entry for the token in the file."""
        return Note(
            self.token_id,
            self.ahead_ms,
            self.life.renewed_ms,
            self.life.token.expiry_timestamp_ms,
            self.retry_at_ms,
        )

    def updated(self, known: Note | None) -> _SharedToken:
        """Return the token with the times in the file, if they are of this token and not older."""
        if known is None or known.token_id != self.token_id:
            return self
        if known.renewed_ms < self.life.renewed_ms:
            return self
        token = replace(self.life.token, expiry_timestamp_ms=known.expires_ms)
        return _SharedToken(TokenLife(token, known.renewed_ms), known.ahead_ms, known.retry_at_ms)


# The tokens that this process knows.
_shared: dict[Owner, _SharedToken] = {}


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
    owner = Owner(_login(config, identity), resolved_login(config))
    token = _shared.get(owner)
    if token is None or not token.needs_nothing(_now_ms()):
        connect = partial(KafkaAdmin, config, identity=identity)
        with ExitStack() as stack:
            try:
                file = stack.enter_context(locked_file(config))
            except TimeoutException as error:
                token = _without_lock(connect, token, unlocked_notes().shared(owner), error)
            else:
                notes = Notes.read(file)
                known = notes.shared(owner)
                token = _renewed(connect, token, known)
                notes.remove_expired(_now_ms())
                # A token that cannot be renewed now replaces no other token in the file.
                if not token.retry_at_ms or known is None or token.token_id == known.token_id:
                    notes.share(owner, token.note)
                notes.write(file)
        _remove_expired()
        _shared[owner] = token
    return _with_token(options, token.life.token)


def _forget(config: ProducerConfig, token: DelegationToken) -> None:
    """Remove a token from the cache and from the file, so that it is no longer used."""
    for owner, each in list(_shared.items()):
        if each.life.token.token_id == token.token_id:
            del _shared[owner]
    with locked_file(config) as file:
        notes = Notes.read(file)
        notes.remove(token.token_id)
        notes.write(file)


def _remove_expired() -> None:
    """Remove expired tokens from the cache, for example those of credentials no longer in use."""
    now_ms = _now_ms()
    for owner, each in list(_shared.items()):
        if not each.is_valid(now_ms):
            del _shared[owner]


def _renewed(
    connect: Callable[[], KafkaAdmin], token: _SharedToken | None, known: Note | None
) -> _SharedToken:
    """Return the token to use: the token in the file, renewed if necessary, or a new token.

    token: the token that this process knows. known: the entry of the current token in the file. If
    a valid token cannot be renewed now, return it without renewal.
    """
    token = current = None if token is None else token.updated(known)
    try:
        with connect() as admin:
            if known is not None and (token is None or token.token_id != known.token_id):
                # Another process has created the token in the file.
                current = _described(admin, known)
            return _settled(admin, current)
    except KafkaException as error:
        return _unless_expired(current or token, error)


def _without_lock(
    connect: Callable[[], KafkaAdmin],
    token: _SharedToken | None,
    known: Note | None,
    error: TimeoutException,
) -> _SharedToken:
    """Return a valid token while another process locks the file. Arguments as for `_renewed`.

    error: raised if there is no valid token.
    """
    token = None if token is None else token.updated(known)
    now_ms = _now_ms()
    is_valid = token is not None and token.is_valid(now_ms)
    if known is not None and now_ms < known.expires_ms and not is_valid:
        with connect() as admin:
            token = _described(admin, known)
    if token is not None and token.needs_nothing(now_ms):
        return token
    return _unless_expired(token, error)


def _unless_expired(token: _SharedToken | None, error: KafkaException) -> _SharedToken:
    """Return a token that cannot be renewed now because of `error`. Raise that if it is expired."""
    now_ms = _now_ms()
    if token is None or not token.is_valid(now_ms):
        raise error
    logger.warning(
        "the delegation token %s cannot be renewed now, and is used until it expires: %s",
        token.token_id,
        error,
    )
    return replace(token, retry_at_ms=_retry_at_ms(now_ms, token.life.token.expiry_timestamp_ms))


def _settled(admin: KafkaAdmin, token: _SharedToken | None) -> _SharedToken:
    """Keep, renew or replace a token, as `TokenLife.action` requires. Return the token to use."""
    if token is not None and token.needs_nothing(_now_ms()):
        return token
    if token is not None and token.life.action(_now_ms()) is TokenAction.RENEW:
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


def _described(admin: KafkaAdmin, known: Note) -> _SharedToken | None:
    """Return the token of an entry in the file, or None if the brokers do not know the token."""
    # If the clock was set back, the token may seem to be new for much longer than FRESH_MS.
    end_s = time.monotonic() + FRESH_MS / 1000
    while True:
        for token in admin.describe_delegation_token():
            if token.token_id == known.token_id:
                life = TokenLife.known(token, known.renewed_ms, known.ahead_ms)
                return _SharedToken(life, known.ahead_ms, known.retry_at_ms)
        # The broker may not know a very new token yet.
        if _now_ms() >= known.renewed_ms + FRESH_MS or time.monotonic() >= end_s:
            return None
        time.sleep(_PAUSE_S)


_OF_LOGINS: Final = tuple(
    name
    for name in ProducerConfig.__struct_fields__
    if name.startswith(("bootstrap_", "config_", "sasl_", "security_", "ssl_"))
)


def _login(config: ProducerConfig, identity: str) -> bytes:
    """Return what `Owner.login` is for a configuration and its `login_identity`."""
    return encoded([*(getattr(config, name) for name in _OF_LOGINS), identity])


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
    with locked_file(config) as file:
        notes = Notes.read(file)
    found = notes.jobs.get(options.write_id or "", [])
    if not found and notes.tokens:
        identity = login_identity(config)
        # Running tasks may still use a token that was replaced, or that was created before a
        # reference got another value, such as a new password.
        found = notes.of_login(_login(config, identity))
    if not found:
        return longer_wait_s(waited_s)
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
    begun = msgspec.structs.replace(note, retry_at_ms=_retry_at_ms(now_ms, note.expires_ms))
    if _replace_note(config, note, begun):
        with KafkaAdmin(config, identity=identity) as admin:
            renewed = _renewed_note(admin, begun)
        _replace_note(config, begun, renewed)
    return _FIRST_LOOK_S


def longer_wait_s(waited_s: float) -> float:
    """Return the seconds until the next call of `renew_for_write`, twice as many as the last time.

    waited_s: 0 for the first time.
    """
    return min(_LOOK_S, max(_FIRST_LOOK_S, 2 * waited_s))


def _renewed_note(admin: KafkaAdmin, note: Note) -> Note | None:
    """Renew a token and return its new entry, or None if the brokers do not know the token."""
    token = _described(admin, note)
    if token is None:
        return None
    expiry_ms = admin.renew_delegation_token(token.life.token.hmac)
    life = token.life.renewed(expiry_ms, note.ahead_ms, _now_ms())
    return _SharedToken(life, note.ahead_ms).note


def _replace_note(config: ProducerConfig, old: Note, new: Note | None) -> bool:
    """Replace or remove an entry of the file. Return False if another process has changed it."""
    with locked_file(config) as file:
        notes = Notes.read(file)
        is_there = notes.replace(old, new)
        if is_there:
            notes.write(file)
    return is_there


def forget_write(options: SinkOptions) -> None:
    """Remove from the file the token of a job that has ended."""
    if options.write_id is not None:
        _note_job(options.producer, options.write_id, None)


def _note_job(config: ProducerConfig, write_id: str, note: Note | None) -> None:
    """Set or remove a job's entry in the file. If the file stays locked, only log a warning."""
    try:
        with locked_file(config) as file:
            notes = Notes.read(file)
            notes.remove_expired(_now_ms())
            notes.jobs.pop(write_id, None)
            if note is not None:
                notes.jobs[write_id] = [note]
            notes.write(file)
    except TimeoutException as error:
        if note is not None:
            warn_once(
                logger, f"the delegation token of a job is not renewed while its tasks run: {error}"
            )
