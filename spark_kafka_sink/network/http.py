"""HTTP requests, limited in time and size, without redirects.

One deadline limits the time to connect, including the TLS handshake. A second deadline limits the
time until the response is complete. A peer cannot extend it by sending a single byte now and then.
Only ``http`` and ``https`` are supported. Environment variables of the process set the proxies.
Requests to loopback addresses use no proxy.

This is the only module that imports urllib.
"""

from __future__ import annotations

import io
import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
)
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.error import URLError
from urllib.parse import quote, quote_plus, unquote, urlencode, urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from spark_kafka_sink.errors import ConfigException

if TYPE_CHECKING:
    from spark_kafka_sink.network.tls import SSLContext

MOST_BYTES: Final = 1 << 20
"""The size of the largest response body in bytes, unless the request has another limit."""
# The size limit for the status line, the headers and the chunk framing.
_MOST_OVERHEAD: Final = 256 << 10
_SCHEMES: Final = ("http", "https")
_AGENT: Final = "spark-kafka-sink"
_TRUST_ITS_CA: Final = "trust the certificate of its CA"
# How the message of http.client begins if a proxy refuses CONNECT. The proxy sends the rest of it.
_PROXY_REFUSAL: Final = re.compile(r"Tunnel connection failed: (\d{3})\b")


class HttpException(Exception):
    """Raised if there is no complete response. The message contains nothing that the peer sent.

    is_refused: whether a retry would fail in the same way.
    """

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(message)
        self.is_refused = is_refused


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP response. retry_after_s: the delay in Retry-After, or None without that header."""

    status: int
    body: bytes = field(repr=False)
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of a request.

    connect_s: the time limit for connecting, in seconds. read_s: the time limit in seconds from
    then until the response is complete. most_bytes: the maximum size of the response body.
    """

    connect_s: float
    read_s: float
    most_bytes: int = MOST_BYTES


def check_url(option: str, url: str) -> None:
    """Raise ConfigException if a URL is not a valid HTTP URL. The message does not show the URL."""
    if not is_url(url):
        raise ConfigException(
            f"{option} is not the URL of a token endpoint: expected https://host/path, or "
            "file:///path of a file with the token"
        )
    if urlsplit(url).username is not None or " " in url:
        raise ConfigException(
            f"{option} contains a user name or a space: remove it, and set credentials with "
            "sasl.oauthbearer.client.credentials.client.id and "
            "sasl.oauthbearer.client.credentials.client.secret instead"
        )


def is_url(url: str) -> bool:
    """Return whether a string is a valid HTTP or HTTPS URL in printable ASCII."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    is_text = url.isascii() and url.isprintable()
    return parts.scheme in _SCHEMES and bool(parts.hostname) and is_text


def has_at_behind_host(url: str) -> bool:
    """Return whether a URL has an ``@`` behind its host.

    The parsed host may then be a part of the credentials. For example, a ``/`` in a password that
    is not percent-encoded ends the host.
    """
    parts = urlsplit(url)
    return any("@" in each for each in (parts.path, parts.query, parts.fragment))


def without_user(url: str) -> tuple[str, str | None]:
    """Return a URL without its credentials, and the credentials as ``user:password`` or None."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=host).geturl(), unquote(user) if at else None


def shown_url(url: str) -> str:
    """Return a URL as messages show it: without user, query and fragment.

    If there is an ``@`` behind the host, return only the scheme.
    """
    parts = urlsplit(url)
    if has_at_behind_host(url):
        return f"{parts.scheme}://…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_encrypted(url: str) -> bool:
    """Return whether data sent to a URL is encrypted."""
    return urlsplit(url).scheme == "https"


def is_remote(url: str) -> bool:
    """Return whether the host of a URL is neither localhost nor a loopback address."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def url_encoded(text: str) -> str:
    """Return a string encoded as a value of a form (application/x-www-form-urlencoded)."""
    return quote_plus(text)


def path_encoded(text: str) -> str:
    """Return a string encoded as one segment of the path of a URL."""
    return quote(text, safe="")


def post(
    url: str,
    form: Mapping[str, str],
    headers: Mapping[str, str],
    limits: HttpLimits,
    context: SSLContext | None = None,
    certificate_hint: str = _TRUST_ITS_CA,
) -> HttpAnswer:
    """Send a form by POST and return the response, even if its status is an error; see `send`."""
    body = urlencode(form).encode()
    return send("POST", url, body, headers, limits, context, certificate_hint)


def send(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    limits: HttpLimits,
    context: SSLContext | None = None,
    certificate_hint: str = _TRUST_ITS_CA,
) -> HttpAnswer:
    """Send a request and return the response, even if its status is an error.

    context: the TLS context for ``https``. certificate_hint: the advice in the error message if the
    certificate of the server is rejected. Raise HttpException if there is no complete response in
    time.
    """
    request = Request(  # noqa: S310 - the URL is checked, and the opener has no other schemes
        url,
        data=body,
        headers={"Accept": "application/json", "User-Agent": _AGENT, **headers},
        method=method,
    )
    deadline = _Deadline(limits)
    try:
        response = cast("HTTPResponse | None", _opener(url, deadline, context).open(request))
        if response is None:
            raise HttpException(
                "the proxy set in the environment has no scheme, or one other than http: expected "
                "http://HOST:PORT"
            )
        with closing(response):
            found = response.read(limits.most_bytes + 1)
        if len(found) > limits.most_bytes:
            raise _TooLargeError
        if _is_cut(response, found):
            raise IncompleteRead(b"")
        retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
        return HttpAnswer(response.status, found, retry_after_s)
    except URLError as error:
        failure = _failure(error.reason, deadline, certificate_hint)
    except (OSError, HTTPException, ValueError) as error:
        failure = _failure(error, deadline, certificate_hint)
    finally:
        deadline.close()
    # Raised outside the handlers, because the caught exception may contain data that the peer sent.
    raise failure


def _is_cut(response: HTTPResponse, body: bytes) -> bool:
    """Return whether the connection ended before the response was complete.

    In this case, read() returns the incomplete body without an error.

    A response without chunks and without a length ends when the connection ends. If its status says
    that it has a result, but its body is empty, the connection probably ended within the headers.
    """
    if response.length is None:
        return 200 <= response.status < 300 and not body and not response.chunked
    return response.length > 0


class _TooLargeError(OSError):
    """The response is too large."""


class _Deadline:
    """One socket, and the deadline for every wait on it."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.is_connected = False
        self._until = time.monotonic() + limits.connect_s
        self._socket: socket.socket | None = None

    def connected(self) -> None:
        """Record that the connection is made, and start the time limit of the response."""
        self.is_connected = True
        self._until = time.monotonic() + self.limits.read_s

    def left_s(self) -> float:
        """Return the time in seconds until the deadline. Raise TimeoutError if it has passed."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def connect(self, address: tuple[str, int], *_: object) -> socket.socket:
        """Connect to the first reachable address of a host, and return the socket.

        The time limit does not include the DNS look-up. The remaining time is divided equally among
        the addresses that are not tried yet. Raise HttpException for an invalid host name.
        """
        failure: OSError = OSError("the host has no address")
        try:
            addresses = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        except UnicodeError:  # for example because a label is empty or has over 63 characters
            said = "its host name, or that of the proxy set in the environment, is not valid"
            raise HttpException(said, is_refused=True) from None
        self._until = time.monotonic() + self.limits.connect_s
        for number, (family, kind, protocol, _name, target) in enumerate(addresses):
            try:
                made = socket.socket(family, kind, protocol)
            except OSError as error:
                failure = error
                continue
            try:
                made.settimeout(self.left_s() / (len(addresses) - number))
                made.connect(target)
            except OSError as error:
                made.close()
                failure = error
                continue
            # This is the time limit of the TLS handshake.
            made.settimeout(self.left_s())
            self._socket = made
            return made
        raise failure

    def close(self) -> None:
        """Close the socket, if an error has left it open."""
        if self._socket is not None:
            self._socket.close()


class _TimedReader(io.RawIOBase):
    """Reads the data of a peer, until the deadline and up to a maximum size."""

    def __init__(self, peer: socket.socket, deadline: _Deadline) -> None:
        self._peer = peer
        self._raw = peer.makefile("rb", buffering=0)
        self._deadline = deadline
        self._left = deadline.limits.most_bytes + _MOST_OVERHEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - as in RawIOBase
        self._peer.settimeout(self._deadline.left_s())
        size = self._raw.readinto(buffer)
        self._left -= size or 0
        if self._left < 0:
            raise _TooLargeError
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedSocket:
    """A socket with a deadline, with only those methods that HTTPResponse calls."""

    def __init__(self, peer: socket.socket, deadline: _Deadline) -> None:
        self._peer = peer
        self._deadline = deadline

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._peer, self._deadline))


def _response(
    deadline: _Deadline,
    peer: socket.socket,
    *arguments: Any,  # noqa: ANN401 - handed on
    **more: Any,  # noqa: ANN401
) -> HTTPResponse:
    timed = cast("socket.socket", _TimedSocket(peer, deadline))
    return HTTPResponse(timed, *arguments, **more)


class _Timed(HTTPConnection):
    """An HTTP connection with a deadline."""

    # If a program set HTTPConnection.debuglevel, http.client would print the credentials.
    debuglevel = 0

    def __init__(self, *arguments: Any, deadline: _Deadline, **more: Any) -> None:  # noqa: ANN401 - handed on
        super().__init__(*arguments, **more)
        self._deadline = deadline
        self._create_connection = deadline.connect
        self.response_class = cast("Any", partial(_response, deadline))

    def set_debuglevel(self, level: int) -> None:
        """Do nothing, because debug output would contain the credentials (see `debuglevel`)."""

    def connect(self) -> None:
        super().connect()
        self._deadline.connected()
        self.sock.settimeout(self._deadline.left_s())


class _TimedTls(_Timed, HTTPSConnection):
    """An HTTPS connection with a deadline."""


def _opener(url: str, deadline: _Deadline, context: SSLContext | None) -> OpenerDirector:
    """Return an opener that supports only HTTP and HTTPS, and follows no redirects."""

    class Http(HTTPHandler):
        def http_open(self, request: Request) -> HTTPResponse:
            return self.do_open(partial(_Timed, deadline=deadline), request)

    class Https(HTTPSHandler):
        def https_open(self, request: Request) -> HTTPResponse:
            made = partial(_TimedTls, deadline=deadline, context=context)
            return self.do_open(cast("Any", made), request)

    opener = OpenerDirector()
    # For loopback, no proxy is used, because the proxy would connect to its own machine.
    proxy = ProxyHandler(None if is_remote(url) else {})
    handlers = [proxy, Http()] + ([] if context is None else [Https(context=context)])
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _failure(error: object, deadline: _Deadline, certificate_hint: str) -> HttpException:
    """Return the exception for a response that is missing or incomplete."""
    certificate: str | None = getattr(error, "verify_message", None)
    if isinstance(error, HttpException):
        return error
    refusal = _PROXY_REFUSAL.match(str(error)) if isinstance(error, OSError) else None
    if refusal is not None:
        return HttpException(
            f"the proxy set in the environment refused the connection (HTTP status {refusal[1]})"
        )
    if certificate is not None:
        said = certificate.rstrip(".")
        why = f"this client does not accept its certificate ({said}): {certificate_hint}"
    elif isinstance(error, TimeoutError) and deadline.is_connected:
        why = f"its response was not complete within {deadline.limits.read_s:g} s"
    elif isinstance(error, TimeoutError):
        why = f"no connection to it within {deadline.limits.connect_s:g} s"
    elif isinstance(error, _TooLargeError):
        why = f"its response is larger than {deadline.limits.most_bytes} bytes"
    elif isinstance(error, OSError) and not isinstance(error, HTTPException):
        said = getattr(error, "reason", None) or error.strerror or type(error).__name__
        why = f"it cannot be reached: {said}"
    elif isinstance(error, RemoteDisconnected):
        why = "it closed the connection without a response"
    elif isinstance(error, IncompleteRead):
        why = "its response is incomplete"
    else:
        why = "its response is not HTTP"
    is_refused = certificate is not None or isinstance(error, _TooLargeError)
    return HttpException(why, is_refused=is_refused)


def _retry_after_s(value: str | None) -> float | None:
    """Return the delay in seconds from a Retry-After value, or None if it is invalid.

    The value is a number of seconds or a date.
    """
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value[:20])
    with suppress(ValueError, TypeError, OverflowError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return None
