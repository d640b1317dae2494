"""`sasl.jaas.config`: parse one login module and its options as the Java client does.

The Java client parses the text with java.io.StreamTokenizer. This module implements all rules of
that class, so that a text means the same in both clients. Messages do not show parts of the text
that may be secret. For example, if quotes are missing, a word of the password may be where a name
is expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from spark_kafka_sink.auth.mechanisms import (
    AWS_MSK_IAM,
    GSSAPI,
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
)
from spark_kafka_sink.errors import ConfigException

_BY_PASSWORD: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)
PLAIN_LOGIN_MODULE: Final = "PlainLoginModule"
SCRAM_LOGIN_MODULE: Final = "ScramLoginModule"
OAUTHBEARER_LOGIN_MODULE: Final = "OAuthBearerLoginModule"
KRB5_LOGIN_MODULE: Final = "Krb5LoginModule"
IAM_LOGIN_MODULE: Final = "IAMLoginModule"
# The mechanisms of each login module, by the last part of the module's name.
LOGIN_MODULES: Final = {
    PLAIN_LOGIN_MODULE: _BY_PASSWORD,
    SCRAM_LOGIN_MODULE: _BY_PASSWORD,
    OAUTHBEARER_LOGIN_MODULE: (OAUTHBEARER,),
    KRB5_LOGIN_MODULE: (GSSAPI,),
    IAM_LOGIN_MODULE: (AWS_MSK_IAM,),
}
_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")
_UNSECURED: Final = "unsecuredLogin"
# Names that messages may show. Any other word may be a part of a secret.
_NAMES: Final = frozenset(
    {
        *("username", "password", "tokenauth", "clientId", "clientSecret", "scope"),
        *("useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName"),
        *("storeKey", "debug", "doNotPrompt", "renewTGT", "refreshKrb5Config"),
        *("awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsStsRegion", "awsDebugCreds"),
        *("awsRoleAccessKeyId", "awsRoleSecretAccessKey", "awsRoleSessionToken"),
        "awsRoleExternalId",
    }
)
_MODULE_NAME: Final = re.compile(r"[\w.$]*Module", re.ASCII)
_EXAMPLE: Final = (
    "expected: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="…" password="…";'
)
_QUOTES_ADVICE: Final = "put each value in double quotes"


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """A login module with its options. module: the full name as given."""

    module: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def simple_name(self) -> str:
        """The last part of the module's name. It alone identifies the module here."""
        return self.module.rpartition(".")[2]

    def has_token(self, mechanism: str) -> bool:
        """Return whether the login uses a delegation token (ScramLoginModule).

        Only SCRAM has such logins; other login modules ignore the option `tokenauth`.
        """
        is_scram = self.simple_name == SCRAM_LOGIN_MODULE and mechanism != PLAIN
        return is_scram and self.options.get("tokenauth", "").lower() == "true"

    def resolved(self, resolve: Callable[[str], str]) -> JaasEntry:
        """Return the entry with each option's value replaced with `resolve(value)`."""
        return JaasEntry(self.module, {name: resolve(v) for name, v in self.options.items()})


def parse_jaas(text: str) -> JaasEntry:
    """Return the JAAS entry in a text. Raise ConfigException unless there is exactly one."""
    tokens = _Tokens(text)
    entries = []
    while tokens.advance() is not _Kind.END:
        entries.append(_entry(tokens))
    if len(entries) != 1:
        raise ConfigException(
            f"sasl.jaas.config has {len(entries)} login modules: {_EXAMPLE}"
            if entries
            else f"sasl.jaas.config is empty: {_EXAMPLE}"
        )
    return entries[0]


def check_module(entry: JaasEntry, mechanism: str, *, may_show_name: bool = True) -> None:
    """Raise ConfigException if the entry's module does not support the mechanism.

    may_show_name: whether the message may show the name of an unknown module.
    """
    name = entry.simple_name
    served = LOGIN_MODULES.get(name)
    if served is None:
        is_name = may_show_name and _MODULE_NAME.fullmatch(entry.module)
        description = f"the unknown module {entry.module}" if is_name else "an unknown module"
        raise ConfigException(
            f"sasl.jaas.config names {description}: expected one of {', '.join(LOGIN_MODULES)}"
        )
    if mechanism not in served:
        right = [each for each, mechanisms in LOGIN_MODULES.items() if mechanism in mechanisms]
        advice = f"name {' or '.join(right)}, or change sasl.mechanism"
        if mechanism == GSSAPI:
            advice = "set sasl.mechanism, whose default is GSSAPI"
        raise ConfigException(
            f"sasl.jaas.config names {name}, which supports {', '.join(served)}, but "
            f"sasl.mechanism is {mechanism}: {advice}"
        )
    if any(each.startswith(_UNSECURED) for each in entry.options):
        raise ConfigException(
            f"sasl.jaas.config has an option {_UNSECURED}…, which makes unsigned tokens: "
            "unsigned tokens are only for tests of brokers, and are not supported"
        )


class _Kind(Enum):
    """The kind of a token. A mark is a single character that is not part of a word."""

    WORD = "word"
    NUMBER = "number"
    MARK = "mark"
    END = "end"


def _entry(tokens: _Tokens) -> JaasEntry:
    """Parse the rest of an entry after its first token (JaasConfig.parseAppConfigurationEntry)."""
    module = tokens.word
    if tokens.advance() is _Kind.END:
        raise ConfigException(f"sasl.jaas.config has no control flag after the module: {_EXAMPLE}")
    if tokens.word is None or tokens.word.upper() not in _FLAGS:
        raise ConfigException(
            "sasl.jaas.config has no control flag after the module, such as required"
            f"{tokens.reference_advice}: {_EXAMPLE}"
        )
    options: dict[str, str] = {}
    before = "the control flag"
    while tokens.advance() is not _Kind.END and tokens.mark != ";":
        name = tokens.word
        description = f"the option {name}" if name in _NAMES else "an option"
        tokens.advance()
        if tokens.mark != "=":
            raise _error(tokens, f"{before} is not followed by name=value")
        tokens.advance()
        if tokens.word is None:
            raise _error(tokens, f"{description} has no valid value")
        # As in Java, an option whose name is a number or a mark is ignored.
        if name is not None:
            options[name] = tokens.word
        before = description
    if tokens.mark != ";":
        raise ConfigException(
            "sasl.jaas.config: the entry is not terminated by a semi-colon: write ; at its end, "
            f"and {_QUOTES_ADVICE}"
        )
    if not module:
        raise ConfigException(f"sasl.jaas.config does not begin with a module: {_EXAMPLE}")
    return JaasEntry(module, options)


def _error(tokens: _Tokens, why: str) -> ConfigException:
    return ConfigException(
        f"sasl.jaas.config: {why} (at character {tokens.begin + 1}): {_QUOTES_ADVICE}"
        f"{tokens.reference_advice}"
    )


_SPACE, _DIGIT, _ALPHA, _QUOTE = 1, 2, 4, 8
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LINE_ENDS: Final = ("\n", "\r")
# In Java, a backslash at the end of the text becomes this character, because Java casts the
# end-of-text value -1 to a character.
_NO_CHARACTER: Final = "\uffff"


def _classes() -> list[int]:
    """Return the classes (space, digit, …) of each of the first 256 characters.

    They are the same as in the StreamTokenizer that JaasConfig configures.
    """
    table = [_SPACE] * 33 + [0] * (256 - 33)
    for code in [*range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1), *range(160, 256)]:
        table[code] |= _ALPHA
    for character in "-_$":
        table[ord(character)] |= _ALPHA
    for character in "0123456789.-":
        table[ord(character)] |= _DIGIT
    for character in "\"'":
        table[ord(character)] |= _QUOTE
    return table


_CLASSES: Final = _classes()


class _Tokens:
    """Works like java.io.StreamTokenizer: `advance` reads a token, and the attributes describe it.

    word: a word, or the content of a quoted string. mark: any other character. begin: the position
    of the token.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.word: str | None = None
        self.mark: str | None = None
        self.begin = 0

    def advance(self) -> _Kind:
        """Read the next token."""
        self.word = self.mark = None
        while True:
            while self._class() & _SPACE:
                self._at += 1
            if self._peek() != "/":
                break
            self._skip_comment()
        self.begin = self._at
        kind = self._class()
        if not self._peek():
            return _Kind.END
        if kind & _DIGIT:
            return self._number()
        if kind & _ALPHA:
            return self._bare_word()
        if kind & _QUOTE:
            return self._quoted()
        self.mark = self._text[self._at]
        self._at += 1
        return _Kind.MARK

    @property
    def reference_advice(self) -> str:
        """Advice to append to a message if a reference (``${…}``) is not in quotes."""
        around = self._text[max(0, self.begin - 2) : self.begin + 2]
        return ', and references too, as "${env:NAME}"' if "${" in around else ""

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _class(self) -> int:
        character = self._peek()
        if not character:
            return 0
        code = ord(character)
        return _CLASSES[code] if code < len(_CLASSES) else _ALPHA

    def _skip_comment(self) -> None:
        """Skip a comment, which begins at the current slash.

        A comment in ``/* */`` ends after the closing slash. Any other comment ends with the line.
        """
        is_long = self._text.startswith("*", self._at + 1)
        # The character after the slash is skipped, even if it is a line end.
        self._at += 2
        if not is_long:
            while self._peek() and self._peek() not in _LINE_ENDS:
                self._at += 1
            return
        before = ""
        while character := self._peek():
            self._at += 1
            if character == "/" and before == "*":
                return
            # The character after a line end is skipped, so a slash there does not end the comment.
            if character in _LINE_ENDS:
                if character == "\r" and self._peek() == "\n":
                    self._at += 1
                character = self._peek()
                self._at += 1
            before = character

    def _number(self) -> _Kind:
        if self._peek() == "-":
            self._at += 1
            following = self._peek()
            if not (following and following in "0123456789."):
                self.mark = "-"
                return _Kind.MARK
        has_dot = False
        while (character := self._peek()) and character in "0123456789.":
            if character == ".":
                if has_dot:
                    break
                has_dot = True
            self._at += 1
        return _Kind.NUMBER

    def _bare_word(self) -> _Kind:
        while self._class() & (_ALPHA | _DIGIT):
            self._at += 1
        self.word = self._text[self.begin : self._at]
        return _Kind.WORD

    def _quoted(self) -> _Kind:
        quote = self._peek()
        self._at += 1
        found = []
        while (character := self._peek()) and character != quote and character not in _LINE_ENDS:
            self._at += 1
            found.append(character if character != "\\" else self._escaped())
        if character == quote:
            self._at += 1
        self.word = "".join(found)
        return _Kind.WORD

    def _escaped(self) -> str:
        octal = _OCTAL.match(self._text, self._at)
        if octal is not None:
            self._at = octal.end()
            return chr(int(octal[0], 8))
        character = self._peek()
        self._at += 1
        return _ESCAPES.get(character, character or _NO_CHARACTER)


# Up to three octal digits, at most \377.
_OCTAL: Final = re.compile(r"[0-3][0-7]{0,2}|[4-7][0-7]?")
