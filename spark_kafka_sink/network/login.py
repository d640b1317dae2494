"""The OAuth token of one configuration, fetched outside the network's thread.

In a process, all clients (producer, admin client, reader) with equal configurations share one
`TokenSource`. Slow calls (HTTP, or a user's callable) run in the thread of the source, which then
wakes the selectors of the clients. The thread runs while the source has clients, and refreshes the
token before it expires. When there are no clients, the source keeps the token for a client that
comes within a minute, unless brokers have rejected it. A later client gets a new token, or the kept
one if none can be fetched. A call may be slow, or never return. Another thread then makes the
next call. The number of threads is limited.

A forked child starts without sources, because it must not use the tokens and threads of its parent.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar
from weakref import WeakSet

from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken
from spark_kafka_sink.auth.token_renewal import TokenException, TokenRenewal
from spark_kafka_sink.errors import SaslAuthenticationException, as_options_are_named_here
from spark_kafka_sink.logs import never_raise_from_logging, safe_logging

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# How often a source checks whether its clients still exist, in seconds. Closed clients detach.
_LOOK_S: Final = 60.0
_MOST_KEPT: Final = 64
SLOW_S: Final = 60.0
"""If a call takes longer than this, in seconds, another thread makes the next call."""
_MOST_SLOW: Final = 8


class LoginUser(Protocol):
    """A client that logs in with the tokens of a source."""

    def wake(self) -> None:
        """Make the client look for a token again. The source calls this after each fetch."""


def call_within(limit_s: float, call: Callable[[], _T]) -> _T:
    """Return the result of a call. The call runs in a thread of its own, because it may not return.

    Raise the exception of the call, or TokenException if the call takes over `limit_s` seconds.
    """
    results: list[tuple[_T] | BaseException] = []
    # A lock without `with`: an interrupt cannot leave it in a wrong state.
    has_ended = _thread.allocate_lock()
    has_ended.acquire()

    def run() -> None:
        try:
            results.append((call(),))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            results.append(error)
        finally:
            has_ended.release()

    try:
        _thread.start_new_thread(as_options_are_named_here(run), ())
    except RuntimeError:
        raise TokenException("no thread can be started to fetch one") from None
    if not has_ended.acquire(timeout=limit_s):
        raise TokenException(f"no result after {limit_s:.0f} s")
    (found,) = results
    if isinstance(found, BaseException):
        raise found
    return found[0]


class TokenSource:
    """Fetches tokens and returns the current token; any thread may call it.

    name: the name of the source in error messages. fetch: returns a token, or raises
    TokenException; any other exception also counts as a failure. clock: returns seconds since 1970.
    steady: returns seconds, and is never set. slow_s: if a fetch takes longer than this, in
    seconds, another thread fetches.
    """

    def __init__(
        self,
        name: str,
        fetch: Callable[[], OAuthBearerToken],
        renewal: TokenRenewal,
        random: Random,
        clock: Callable[[], float] = time.time,
        *,
        steady: Callable[[], float] = time.monotonic,
        slow_s: float = SLOW_S,
    ) -> None:
        self._name = name
        self._fetch = fetch
        self._renewal = renewal
        self._random = random
        self._clock, self._steady = clock, steady
        # The largest difference between the two clocks since the last token arrived.
        self._ahead_s = float("-inf")
        # Always acquire this lock, not the condition, because an interrupt inside
        # `Condition.__enter__` would leave the lock locked.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._users: WeakSet[LoginUser] = WeakSet()
        self._slow_s = slow_s
        # An object that identifies the thread that fetches, or None if there is no thread.
        self._thread: object | None = None
        # When the thread began its current fetch, by the steady clock, or None while it waits.
        # `_slow_threads`: the number of replaced threads that are still fetching.
        self._fetching_since: float | None = None
        self._slow_threads = 0

    def attach(self, user: LoginUser) -> None:
        """Add a client. Fetch tokens while there are clients, and wake them after each fetch."""
        with self._lock:
            is_first = not self.is_in_use
            self._renewal.attached(self._now(), self._random.random(), is_first=is_first)
            self._users.add(user)
            self._go_on()

    def detach(self, user: LoginUser) -> None:
        """Remove a client. It is not woken any more."""
        with self._lock:
            self._users.discard(user)
            if not self.is_in_use:
                self._renewal.unused(self._now())
            self._changed.notify_all()

    @property
    def is_in_use(self) -> bool:
        """Whether the source has any clients."""
        return len(self._users) > 0

    def token(self) -> OAuthBearerToken | None:
        """Return the current token to log in with, or None while it is being fetched.

        Raise SaslAuthenticationException if there is no token and a retry would fail in the same
        way.
        """
        self._replace_slow_thread()
        with self._lock:
            now = self._now()
            found = self._renewal.serving(now)
            failure = self._renewal.failure
            if found is None:
                is_over = failure is not None and failure.is_final
                if is_over and self._fetching_since is None and now < self._renewal.fetch_at:
                    raise SaslAuthenticationException(self._described(failure))
                self._go_on()
            elif self._thread is None:
                self._start()  # an interrupt kept an earlier call from starting it
            return found

    def problem(self) -> str:
        """Return why there is no token now.

        Return an empty string if there is a token, or if the reason is unknown.
        """
        with self._lock:
            failure = self._renewal.failure
            if failure is None or self._renewal.serving(self._now()) is not None:
                return ""
            return self._described(failure)

    def refresh(self, token: OAuthBearerToken) -> None:
        """Fetch another token now, if `token` is the current one."""
        with self._lock:
            self._renewal.fetch_now(token, self._now())
            self._changed.notify_all()

    def refused(self, token: OAuthBearerToken) -> None:
        """Record that a broker has rejected a token."""
        with self._lock:
            self._renewal.refused(token, self._now())
            self._changed.notify_all()

    def accepted(self, token: OAuthBearerToken) -> None:
        """Record that a broker has accepted a token."""
        with self._lock:
            self._renewal.accepted(token)

    def _now(self) -> float:
        """Return the time of the renewal in seconds since 1970; the caller holds the lock.

        If the clock was set back after a token arrived, the result goes on as if it was not.
        Otherwise, the next fetch would be late by as much. The steady clock alone is not enough,
        because it may stop while the machine is suspended.
        """
        steady = self._steady()
        self._ahead_s = max(self._ahead_s, self._clock() - steady)
        return steady + self._ahead_s

    def _described(self, failure: TokenException | None) -> str:
        return f"{self._name} returned no token: {failure}"

    def _go_on(self) -> None:
        """Start or wake the thread; the caller holds the lock."""
        self._changed.notify_all()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        """Start the thread if there are clients; the caller holds the lock."""
        if not self.is_in_use:
            return
        thread = object()
        run = as_options_are_named_here(partial(self._run, thread))
        self._thread = thread
        try:
            # Thread.start is not used, because an interrupt inside it would produce a thread that
            # fails before it runs anything.
            _thread.start_new_thread(run, ())
        except RuntimeError:
            # The interpreter is exiting, or the system cannot start another thread.
            self._thread = None
            failure = TokenException("no thread can be started to fetch one")
            self._renewal.failed(failure, self._now(), self._random)

    def _replace_slow_thread(self) -> None:
        """Start another thread if the current one has been fetching for too long."""
        with self._lock:
            since = self._fetching_since
            is_slow = since is not None and self._steady() >= since + self._slow_s
            if not is_slow or self._slow_threads >= _MOST_SLOW or not self.is_in_use:
                return
            self._slow_threads += 1
            self._thread = self._fetching_since = None
            failure = TokenException(f"no result after {self._slow_s:.0f} s")
            self._renewal.failure, self._renewal.fetch_at = failure, self._now()
            self._go_on()
        with safe_logging():
            logger.warning("%s; another thread retries", self._described(failure))

    def _run(self, thread: object) -> None:
        threading.current_thread().name = "kafka-login"
        never_raise_from_logging()
        while self._wait_until_due(thread):
            self._fetch_one(thread)

    def _wait_until_due(self, thread: object) -> bool:
        """Wait until the next fetch is due.

        Return False if there are no clients any more, or if another thread has replaced this one.
        """
        with self._lock:
            while True:
                if self._thread is not thread:
                    return False
                if not self.is_in_use:
                    # The last client may have ended without `detach`.
                    self._renewal.unused(self._now())
                    self._thread = None
                    return False
                wait_s = self._renewal.fetch_at - self._now()
                if wait_s <= 0:
                    self._fetching_since = self._steady()
                    return True
                self._changed.wait(min(wait_s, _LOOK_S))

    def _fetch_one(self, thread: object) -> None:
        token, failure = None, None
        try:
            token = self._fetch()
        except TokenException as error:
            failure = error
        except BaseException as error:  # noqa: BLE001 - the thread goes on, whatever it is
            failure = TokenException(type(error).__name__)
        with self._lock:
            now = self._now()
            if self._thread is thread:
                self._fetching_since = None
            else:
                self._slow_threads -= 1
                # Use the late token only if it is valid and there is no other valid token.
                has_expired = token is None or (token.expires_at or now + 1) <= now
                if has_expired or self._renewal.serving(now) is not None:
                    return
            if token is not None:
                # Its times are by the clock as it is set now.
                self._ahead_s = float("-inf")
                now = self._now()
                self._renewal.fetched(token, now, self._random.random())
            elif failure is not None:
                self._renewal.failed(failure, now, self._random)
            has_token = self._renewal.serving(now) is not None
            next_s = self._renewal.fetch_at - now
            users = list(self._users)
        with safe_logging():
            if failure is None:
                logger.debug(
                    "%s returned a token; the next one is fetched in %.0f s", self._name, next_s
                )
            else:
                logger.log(
                    logging.INFO if has_token else logging.WARNING,
                    "%s; another attempt follows in %.1f s%s",
                    self._described(failure),
                    next_s,
                    "; the last token is still used" if has_token else "",
                )
        for user in users:
            user.wake()


class TokenSources:
    """The token sources of a process, by configuration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: OrderedDict[Hashable, TokenSource] = OrderedDict()

    def source(self, key: Hashable, make: Callable[[], TokenSource]) -> TokenSource:
        """Return the source of a key. If the key has no source yet, call `make` to make it."""
        with self._lock:
            found = self._sources.get(key)
            if found is None:
                found = make()
                idle = [each for each, source in self._sources.items() if not source.is_in_use]
                for each in idle[: max(0, len(self._sources) + 1 - _MOST_KEPT)]:
                    del self._sources[each]
                self._sources[key] = found
            self._sources.move_to_end(key)
            return found

    def forget(self) -> None:
        """Drop all sources and replace the lock; called in a forked child.

        A lock that another thread held during the fork would never be released.
        """
        self._lock = threading.Lock()
        self._sources = OrderedDict()


SOURCES: Final = TokenSources()
os.register_at_fork(after_in_child=SOURCES.forget)
