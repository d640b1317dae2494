"""A TLS 1.3 server in memory that renews its keys on command, which Python's ssl cannot do.

Python's ssl completes the handshake and logs the secrets of both sides. From then on, the server
encrypts and decrypts records itself (RFC 8446, 5.2, 7.2 and 7.3).
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from support.brokers.certificates import Certificate
from support.brokers.tls_peers import server_context

_SUITE: Final = "TLS_AES_256_GCM_SHA384"
_HASH: Final = hashes.SHA384()
_HEADER_BYTES: Final = 5
_IV_BYTES: Final = 12
_KEY_BYTES: Final = 32
_HANDSHAKE: Final = b"\x16"
_DATA: Final = b"\x17"
# KeyUpdate: of one byte, which says whether the peer is to renew its keys, too.
_UPDATE_AND_ASK: Final = bytes.fromhex("18 000001 01")
_UPDATE: Final = bytes.fromhex("18 000001 00")


class _Direction:
    """The keys of one side, by which its records are encrypted."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._use_keys()

    def renew(self) -> None:
        """Go on to the next keys."""
        self._secret = self._expanded("traffic upd", _HASH.digest_size)
        self._use_keys()

    def encrypt(self, kind: bytes, content: bytes) -> bytes:
        """Return a record."""
        inner = content + kind
        header = _DATA + b"\x03\x03" + (len(inner) + 16).to_bytes(2)
        return header + self._aead.encrypt(self._nonce(), inner, header)

    def decrypt(self, record: bytes) -> tuple[bytes, bytes]:
        """Return the kind and the content of a record."""
        header, encrypted = record[:_HEADER_BYTES], record[_HEADER_BYTES:]
        inner = self._aead.decrypt(self._nonce(), encrypted, header).rstrip(b"\0")
        return inner[-1:], inner[:-1]

    def _use_keys(self) -> None:
        self._aead = AESGCM(self._expanded("key", _KEY_BYTES))
        self._iv = int.from_bytes(self._expanded("iv", _IV_BYTES))
        self._records = 0

    def _nonce(self) -> bytes:
        nonce = (self._iv ^ self._records).to_bytes(_IV_BYTES)
        self._records += 1
        return nonce

    def _expanded(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0"
        return HKDFExpand(_HASH, size, info).derive(self._secret)


class KeyUpdatingServer:
    """The server's side of one connection."""

    def __init__(self, certificate: Certificate, folder: Path) -> None:
        context = server_context(folder, certificate, version="TLSv1.3")
        context.num_tickets = 0  # the server's first record after the handshake is data
        self._log = folder / "secrets.log"
        context.keylog_filename = str(self._log)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def handshake(self, received: bytes) -> bytes:
        """Process bytes of the handshake, and return the response."""
        self._incoming.write(received)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return self._outgoing.read()
        cipher = self._ssl.cipher()
        assert cipher is not None
        assert cipher[0] == _SUITE
        lines = [line.split() for line in self._log.read_text().splitlines()]
        secrets = {line[0]: bytes.fromhex(line[-1]) for line in lines if line[0] != "#"}
        self._client = _Direction(secrets["CLIENT_TRAFFIC_SECRET_0"])
        self._server = _Direction(secrets["SERVER_TRAFFIC_SECRET_0"])
        return self._outgoing.read()

    def key_update(self) -> bytes:
        """Renew the server's keys; return the record that also asks the client to do so."""
        record = self._server.encrypt(_HANDSHAKE, _UPDATE_AND_ASK)
        self._server.renew()
        return record

    def encrypt(self, data: bytes) -> bytes:
        """Return a record with data."""
        return self._server.encrypt(_DATA, data)

    def decrypt_updated(self, sent: bytes) -> bytes:
        """Return the client's data, which must follow the renewal of its keys."""
        first = _HEADER_BYTES + int.from_bytes(sent[3:_HEADER_BYTES])
        assert self._client.decrypt(sent[:first]) == (_HANDSHAKE, _UPDATE)
        self._client.renew()
        kind, data = self._client.decrypt(sent[first:])
        assert kind == _DATA
        return data
