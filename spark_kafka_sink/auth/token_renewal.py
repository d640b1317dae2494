"""The current OAuth token, and the time of the next fetch. This module does not read a clock.

::

    NOTHING ── a token is fetched ──> SERVING ── a client comes after a pause ──> HELD
       ^                                 │ ^                                      │ │
       ├───── the token has expired ─────┘ └──── a fetch ends, or takes long ─────┘ │
       └───────────────────────── the token has expired ────────────────────────────┘

In NOTHING, clients wait for a token. In SERVING, clients get the current token. When the refresh
window of this token begins, the next token is fetched and replaces it. A fetch that fails is
retried after a back-off. The old token is used until it expires.

In HELD, clients wait for a new token. The first client after a pause without clients is often one
that the user starts after a change of rights, and only a new token contains this change. If the
fetch fails or takes long, the old token is used.

The next fetch is also due if a broker rejects the token and the last fetch is long enough ago. The
rejected token is still used until it is replaced, because the cause may be that broker's clock or
keys. With such a cause, the broker also rejects the next tokens. So the fetches become rarer until
a broker accepts a token. If all clients close before a token is accepted, the rejected token is not
reused. A new token is fetched for the next client.

If a retry would probably fail in the same way, the failure is raised to the clients that wait for a
token. The fetch is still retried after the longest back-off, because the cause may be fixed by
then.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from spark_kafka_sink.auth.oauthbearer import OAuthBearerToken, RefreshWindow, refresh_at
from spark_kafka_sink.backoff import ExponentialBackoff

if TYPE_CHECKING:
    from random import Random

# The assumed lifetime of a token without an expiry time, and of a token that seems to have expired
# when it arrives. Such a token may still be valid by the broker's clock, which is the one that
# counts.
_ASSUMED_LIFE_S: Final = 300.0
_LEAST_LIFE_S: Final = 60.0
# The shortest pause between two fetches. The options and the endpoint cannot make it shorter.
_LEAST_PAUSE_S: Final = 0.05
# The longest Retry-After that is obeyed.
_LONGEST_RETRY_AFTER_S: Final = 300.0
# The requests that many workers would send at the same moment are spread over this time. After a
# long Retry-After, they are spread over a share of it, if that is longer.
SPREAD_S: Final = 1.0
_SPREAD_SHARE: Final = 0.1
# If brokers reject a token within this time after its fetch, no new token is fetched, because they
# would probably reject it, too. If sasl.login.refresh.min.period.seconds is longer, it is used
# instead. The time doubles with each token that is rejected, up to the longest time.
_FRESH_S: Final = 10.0
_LONGEST_FRESH_S: Final = 300.0
UNUSED_S: Final = 60.0
"""If there were no clients for longer than this, in seconds, the next client gets a new token."""
# How long such a client waits for the new token while there is an old one.
_LONGEST_HELD_S: Final = 3.0


class TokenException(Exception):
    """No token could be fetched. The message contains no secret.

    is_final: whether a retry would fail in the same way. retry_after_s: the delay in seconds that
    the endpoint requests, or None if it does not request a delay.
    """

    def __init__(
        self, message: str, *, is_final: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.is_final = is_final
        self.retry_after_s = retry_after_s


class TokenRenewal:
    """The token of one configuration; times are seconds since 1970.

    spread_s: the fetches for the first clients of many processes are spread over this time, in
    seconds. fetch_at: when to fetch the next token. failure: the error of the last fetch, or None
    if it succeeded.
    """

    def __init__(
        self, window: RefreshWindow, backoff: ExponentialBackoff, spread_s: float = 0.0
    ) -> None:
        self._window = window
        self._backoff = backoff
        self._spread_s = spread_s
        self._token: OAuthBearerToken | None = None
        self._fetched_at = self._ends_at = 0.0
        self._failures = 0
        # Whether a broker has rejected the token, and how many tokens in a row before this token
        # were rejected.
        self._is_refused = False
        self._refused_before = 0
        # Since when there are no clients; infinite while there are clients.
        self._unused_since = -inf
        self._held_until = -inf
        self.fetch_at = 0.0
        self.failure: TokenException | None = None

    def serving(self, now: float) -> OAuthBearerToken | None:
        """Return the token to log in with, or None if there is none, or if the next one is due."""
        return self._token if self._held_until <= now < self._ends_at else None

    def fetched(self, token: OAuthBearerToken, now: float, chance: float) -> None:
        """Set the token that was fetched. chance: a random number from 0 to 1."""
        ends_at = now + _ASSUMED_LIFE_S if token.expires_at is None else token.expires_at
        issued_at = token.issued_at
        if ends_at <= now:
            ends_at, issued_at = now + _LEAST_LIFE_S, None
        self._token, self._fetched_at, self._ends_at = token, now, ends_at
        self._held_until = -inf
        self.failure, self._failures = None, 0
        self._refused_before += self._is_refused
        self._is_refused = False
        refresh = refresh_at(
            self._window, now=now, issued_at=issued_at, expires_at=ends_at, chance=chance
        )
        self.fetch_at = max(refresh, now + _LEAST_PAUSE_S)

    def failed(self, failure: TokenException, now: float, random: Random) -> None:
        """Record that a fetch failed, and schedule the next one."""
        pause_s = self._backoff.max_s
        if not failure.is_final:
            pause_s = self._backoff.delay_s(self._failures, random)
            self._failures += 1
            if now < self._ends_at:
                # A long back-off must end before the current token expires.
                pause_s = min(pause_s, max(self._backoff.base_s, (self._ends_at - now) / 2))
        asked_s = min(failure.retry_after_s or 0.0, _LONGEST_RETRY_AFTER_S)
        if asked_s > pause_s:
            # The endpoint probably asks all workers for the same delay.
            pause_s = asked_s + random.random() * max(SPREAD_S, _SPREAD_SHARE * asked_s)
        self._held_until = -inf
        self.failure = failure
        self.fetch_at = now + max(pause_s, _LEAST_PAUSE_S)

    def fetch_now(self, token: OAuthBearerToken, now: float) -> None:
        """Make a fetch due now if `token` is the current one and the last fetch succeeded."""
        if token is self._token and self.failure is None:
            self.fetch_at = min(self.fetch_at, now)

    def refused(self, token: OAuthBearerToken, now: float) -> None:
        """Record that a broker has rejected a token. If it is old enough, make a fetch due now.

        The token is still used until it is replaced, because other brokers may accept it. If it was
        fetched a short time ago, no new token is fetched, because brokers would probably reject it,
        too.
        """
        if token is not self._token:
            return
        self._is_refused = True
        least_s = max(_FRESH_S, self._window.min_period_s)
        # The exponent is limited to avoid overflow.
        pause_s = least_s * 2.0 ** min(self._refused_before, 64)
        if now >= self._fetched_at + min(pause_s, max(least_s, _LONGEST_FRESH_S)):
            self.fetch_now(token, now)

    def attached(self, now: float, chance: float, *, is_first: bool) -> None:
        """Prepare for a new client: the user may have fixed the cause of an earlier failure.

        After a final failure (`is_final`), the next fetch is due now. After any other failure, the
        back-off continues. chance: a random number from 0 to 1. is_first: whether there are no
        other clients. For such a first client, drop the token if brokers have rejected it or the
        token before it. If there were no clients for more than UNUSED_S, make a fetch due, and hold
        the token back until this fetch ends.
        """
        if self.failure is not None and self.failure.is_final:
            self.failure, self.fetch_at = None, 0.0
        if is_first and (self._is_refused or self._refused_before):
            self._token, self._ends_at = None, 0.0
            self._is_refused, self._refused_before = False, 0
            if self.failure is None:
                self.fetch_at = 0.0
        if now > self._unused_since + UNUSED_S:
            due = now + chance * self._spread_s
            if self.failure is None:
                self.fetch_at = due
            if self.fetch_at <= due:
                self._held_until = now + _LONGEST_HELD_S
        self._unused_since = inf

    def unused(self, now: float) -> None:
        """Record that there are no clients any more."""
        self._unused_since = min(self._unused_since, now)

    def accepted(self, token: OAuthBearerToken) -> None:
        """Record that a broker has accepted a token."""
        if token is self._token:
            self._is_refused, self._refused_before = False, 0
