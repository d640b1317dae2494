"""A broker as Amazon MSK's: it takes an OAUTHBEARER token if it computes the same signature itself.

Written from AWS's description of Signature Version 4, and sharing nothing with the sink's own.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import socket
import struct
import time
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from spark_kafka_sink import error_codes
from spark_kafka_sink.wire.frames import FrameSplitter
from spark_kafka_sink.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse
from support.brokers.scripted_broker import ScriptedBroker

_HANDSHAKE, _AUTHENTICATE = 17, 36
_REFUSAL: Final = b'{"status":"invalid_token"}'


class MskBroker(ScriptedBroker):
    """Lets in who has the secret of an access key.

    secrets: by access key. mechanisms, tokens: all that clients have sent. Bytes of a request of
    SASL are read in versions that are not flexible.
    """

    def __init__(self, secrets: dict[str, str], region: str) -> None:
        self.secrets, self._region = secrets, region
        self.mechanisms: list[str] = []
        self.tokens: list[str] = []
        super().__init__()
        self.speaks[_AUTHENTICATE] = 1

    def _serve(self, connection: socket.socket) -> None:
        splitter = FrameSplitter()
        was_refused = is_in = False
        try:
            while data := connection.recv(65536):
                for frame in splitter.feed(data):
                    key, version, correlation_id, size = struct.unpack_from(">hhih", frame)
                    body = frame[10 + size :]
                    self.asked.append(key)
                    if key == _HANDSHAKE:
                        self.mechanisms.append(body[2:].decode())
                        self.answers[key] = SaslHandshakeResponse(
                            error_code=0, mechanisms=["OAUTHBEARER"]
                        )
                    elif key == _AUTHENTICATE:
                        is_in = not was_refused and self._accepts(body[4:])
                        self.answers[key] = SaslAuthenticateResponse(
                            error_code=error_codes.SASL_AUTHENTICATION_FAILED if was_refused else 0,
                            error_message=_REFUSAL.decode() if was_refused else None,
                            auth_bytes=b"" if is_in or was_refused else _REFUSAL,
                            session_lifetime_ms=900_000,
                        )
                        was_refused = not is_in
                    elif key != 18 and not is_in:
                        return
                    connection.sendall(self._answer(key, version, correlation_id))
        except OSError:
            return

    def _accepts(self, message: bytes) -> bool:
        _, auth, *_ = message.decode().split("\x01")
        token = auth.removeprefix("auth=Bearer ")
        self.tokens.append(token)
        url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        return is_signed(url, self.secrets, self._region)


def is_signed(url: str, secrets: dict[str, str], region: str) -> bool:
    """Return whether a URL lets its bearer connect to a cluster of the region now."""
    parts = urlsplit(url)
    fields = dict(parse_qsl(parts.query, strict_parsing=True))
    signature, _ = fields.pop("X-Amz-Signature"), fields.pop("User-Agent")
    access, date, signed_region, service, end = fields["X-Amz-Credential"].split("/")
    moment = calendar.timegm(time.strptime(fields["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
    if not moment - 60 <= time.time() <= moment + int(fields["X-Amz-Expires"]):
        return False
    host = f"kafka.{region}.amazonaws.com"
    asked = (
        parts.scheme,
        parts.netloc,
        parts.path,
        fields["Action"],
        fields["X-Amz-SignedHeaders"],
    )
    if asked != ("https", host, "/", "kafka-cluster:Connect", "host"):
        return False
    if (signed_region, service, end) != (region, "kafka-cluster", "aws4_request"):
        return False
    query = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in sorted(fields.items()))
    payload = hashlib.sha256().hexdigest()
    canonical = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{payload}"
    text = (
        f"AWS4-HMAC-SHA256\n{fields['X-Amz-Date']}\n{date}/{region}/{service}/{end}\n"
        f"{hashlib.sha256(canonical.encode()).hexdigest()}"
    )
    key = ("AWS4" + secrets.get(access, "of nobody")).encode()
    for each in (date, region, service, end):
        key = hmac.new(key, each.encode(), hashlib.sha256).digest()
    return signature == hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
