"""An OAuth server on loopback: an endpoint that signs real JWTs, and one with the keys for brokers.

It checks a client's secret, or its assertion by the keys that tests give it, and fails if a
test says so.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

CLIENT_ID: Final = "client-of-test"
CLIENT_SECRET: Final = "s3cret of the client: ü+&="
KEY_ID: Final = "key-of-test"
AUDIENCE: Final = "kafka-of-test"
ISSUER: Final = "issuer-of-test"
KEYS_PATH: Final = "/jwks"


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def new_key() -> str:
    """Return a private RSA key as PEM."""
    return private_pem(rsa.generate_private_key(public_exponent=65537, key_size=2048))


def private_pem(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, passphrase: str | None = None
) -> str:
    """Return a private key as PEM in PKCS#8."""
    encryption = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase.encode())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    ).decode()


def _rsa(pem: str) -> rsa.RSAPrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


def key_set(pem: str) -> str:
    """Return the public half of a key as a JSON Web Key Set, which brokers read."""
    numbers = _rsa(pem).public_key().public_numbers()
    key = {
        "kty": "RSA",
        "kid": KEY_ID,
        "use": "sig",
        "alg": "RS256",
        "n": _coded(numbers.n.to_bytes(256, "big")),
        "e": _coded(numbers.e.to_bytes(3, "big")),
    }
    return json.dumps({"keys": [key]})


def signed(pem: str, life_s: float, **claims: object) -> str:
    """Return a JWT that brokers of tests take."""
    now = time.time()
    payload = {
        "sub": CLIENT_ID,
        "iss": ISSUER,
        "aud": AUDIENCE,
        "scope": "kafka",
        "iat": now - 1,
        "exp": now + life_s,
    } | claims
    header = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
    text = ".".join(_coded(json.dumps(part).encode()) for part in (header, payload))
    signature = _rsa(pem).sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{text}.{_coded(signature)}"


def verified(
    token: str, key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of an assertion. Raise InvalidSignature if the key is another."""
    header, payload, signature = token.split(".")
    data, sign = f"{header}.{payload}".encode(), _decoded(signature)
    if isinstance(key, rsa.RSAPublicKey):
        key.verify(sign, data, padding.PKCS1v15(), hashes.SHA256())
    else:
        assert len(sign) == 64
        halves = (int.from_bytes(half, "big") for half in (sign[:32], sign[32:]))
        key.verify(utils.encode_dss_signature(*halves), data, ec.ECDSA(hashes.SHA256()))
    return json.loads(_decoded(header)), json.loads(_decoded(payload))


@dataclass(frozen=True)
class Asked:
    """A request that came in."""

    form: Mapping[str, str]
    headers: Mapping[str, str]
    at: float = field(default_factory=time.monotonic)

    @property
    def credentials(self) -> tuple[str, str]:
        """The client's name and secret in the header, empty without one."""
        given = self.headers.get("authorization", "").removeprefix("Basic ")
        name, _, secret = base64.b64decode(given).decode().partition(":")
        return name, secret


@dataclass(frozen=True)
class Answer:
    """A response: a status, a body, and headers."""

    status: int
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)


class TokenServer:
    """The endpoint, at `url`. `answer` makes its responses; `asked` has the requests so far.

    port: 0 for any.
    """

    def __init__(
        self, pem: str, life_s: float = 600, tls: Path | None = None, port: int = 0
    ) -> None:
        self.pem = pem
        self.life_s = life_s
        self.asked: list[Asked] = []
        self.tokens: list[str] = []
        self.answer: Callable[[Asked], Answer] = self.by_secret
        self._tls = tls
        self._port = port
        self._server: ThreadingHTTPServer | None = None
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://localhost:{self._port}/token"

    def start(self) -> None:
        """Listen, at the same port as before."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(form, headers)
                outer.asked.append(asked)
                self._send(outer.answer(asked))

            def do_GET(self) -> None:
                is_known = self.path == KEYS_PATH
                self._send(Answer(200, json.loads(key_set(outer.pem))) if is_known else Answer(404))

            def _send(self, answer: Answer) -> None:
                content = json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        if self._tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Be away; connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def token(self, **claims: object) -> Answer:
        """Return an answer with another token."""
        self.tokens.append(signed(self.pem, self.life_s, **claims))
        return Answer(200, {"access_token": self.tokens[-1], "expires_in": self.life_s})

    def by_secret(self, asked: Asked) -> Answer:
        """Return a token if the secret is right."""
        if asked.credentials != (CLIENT_ID, CLIENT_SECRET):
            said = {"error": "invalid_client", "error_description": "no such client"}
            return Answer(401, said)
        return self.token()
