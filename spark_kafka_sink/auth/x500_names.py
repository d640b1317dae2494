"""Read the subject of a certificate, and show it as Kafka's brokers do.

Brokers use the name that Java's X500Principal.getName() returns (RFC 2253) as the principal of a
client certificate, unless ssl.principal.mapping.rules maps it to a different name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

# The tag of a certificate's version, and the greatest length of an element that DER encodes in one
# byte.
_VERSION: Final = 0xA0
_LONGEST_SHORT: Final = 0x7F
# The attributes that RFC 2253 names, by their object identifiers in DER.
_KEYWORDS: Final = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
}
# The tags of the kinds of text. Java reads each of them as UTF-8.
_TEXTS: Final = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E)
_ESCAPED: Final = frozenset(',=+<>#;"\\')


def certificate_subject(certificate: bytes) -> bytes:
    """Return the subject of a certificate; both are in DER.

    Raise ValueError if the certificate is not valid.
    """
    try:
        at = _content(certificate, _content(certificate, 0)[0])[0]
        if certificate[at] == _VERSION:
            at = _content(certificate, at)[1]
        for _ in ("serial number", "signature algorithm", "issuer", "validity"):
            at = _content(certificate, at)[1]
        return certificate[at : _content(certificate, at)[1]]
    except IndexError:
        raise ValueError("not a certificate") from None


def distinguished_name(subject: bytes) -> str:
    """Return the name in a subject in DER, as X500Principal.getName() of Java returns it."""
    names = [
        "+".join(_attribute(subject, *pair) for pair in _elements(subject, *name))
        for name in _elements(subject, *_content(subject, 0))
    ]
    return ",".join(reversed(names))


def _attribute(subject: bytes, begin: int, end: int) -> str:
    """Return an attribute, such as ``CN=alice``; begin, end: the content of its DER element."""
    type_begin, type_end = _content(subject, begin)
    kind = subject[type_begin:type_end]
    value_begin, value_end = _content(subject, type_end)
    keyword = _KEYWORDS.get(kind)
    if keyword is None or subject[type_end] not in _TEXTS:
        return f"{keyword or _dotted(kind)}=#{subject[type_end:end].hex()}"
    return f"{keyword}={_escaped(subject[value_begin:value_end].decode(errors='replace'))}"


def _escaped(text: str) -> str:
    """Escape the special characters of a value, and the blanks at its ends."""
    inner = text.strip(" \r")
    if not inner:
        return "".join(f"\\{each}" for each in text)
    before, _, after = text.partition(inner)
    shown = "".join(f"\\{each}" if each in _ESCAPED else each for each in inner)
    shown = shown.replace("\0", r"\00")
    return "".join((*(f"\\{each}" for each in before), shown, *(f"\\{each}" for each in after)))


def _dotted(identifier: bytes) -> str:
    """Return an object identifier as numbers with dots."""
    numbers = [0]
    for byte in identifier:
        numbers[-1] = numbers[-1] << 7 | byte & _LONGEST_SHORT
        if byte <= _LONGEST_SHORT:
            numbers.append(0)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:-1])))


def _elements(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the positions of the content of each DER element between two positions."""
    while begin < end:
        yield _content(data, begin)
        begin = _content(data, begin)[1]


def _content(data: bytes, at: int) -> tuple[int, int]:
    """Return the positions at which the content of the DER element at `at` begins and ends."""
    size, begin = data[at + 1], at + 2
    if size > _LONGEST_SHORT:
        length = size - _LONGEST_SHORT - 1
        size, begin = int.from_bytes(data[begin : begin + length], "big"), begin + length
    return begin, begin + size
