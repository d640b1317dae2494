"""References in option values: ``${provider:[path:]key}`` (KIP-297, KIP-421).

There are three providers with Kafka's names: ``env`` returns an environment variable, ``file`` a
value in a properties file, ``directory`` the content of a file. The option `config.providers` can
define more names for these providers, and restrict what a provider with such a name may read. If
the value of a reference contains a reference, the inner one is not resolved. Text that looks like a
reference with an unknown provider is left unchanged, because it may be a part of a password. Kafka
calls a reference a config provider variable.

With references, a user who sets options on a shared driver could send the driver's secrets to their
own server. Environment variables of the process can therefore restrict what may be read. No option
overrides them:

- ``PYKAFKA_CONFIG_PROVIDERS``: which of env, file and directory may be used, or ``none``;
- ``PYKAFKA_ALLOWED_PATHS``: the folders and files that may be read, as absolute paths, besides the
  files shipped with the application;
- ``PYKAFKA_ENV_ALLOWLIST``: a regular expression that the full name of an environment variable
  must match;
- ``PYKAFKA_OAUTH_ALLOWED_URLS``: the exact URLs that tokens may be fetched from.

Lists are separated by commas. An environment variable that is set but empty allows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol, Self

from spark_kafka_sink.auth.java_properties import properties
from spark_kafka_sink.config import written_references
from spark_kafka_sink.errors import ConfigException
from spark_kafka_sink.logs import shown_value

CONFIG_PROVIDERS: Final = "config.providers"
ENV: Final = "env"
FILE: Final = "file"
DIRECTORY: Final = "directory"

ALLOWED_PROVIDERS: Final = "PYKAFKA_CONFIG_PROVIDERS"
ALLOWED_PATHS: Final = "PYKAFKA_ALLOWED_PATHS"
ALLOWED_VARIABLES: Final = "PYKAFKA_ENV_ALLOWLIST"
ALLOWED_URLS: Final = "PYKAFKA_OAUTH_ALLOWED_URLS"

_KINDS: Final = {
    "EnvVarConfigProvider": ENV,
    "FileConfigProvider": FILE,
    "DirectoryConfigProvider": DIRECTORY,
}
_NONE: Final = "none"
_PATHS_PARAM: Final = "allowed.paths"
_PATTERN_PARAM: Final = "allowlist.pattern"


class Files(Protocol):
    """Access to files. `real_path` and `read` raise OSError or ValueError."""

    def shipped(self, path: str) -> str | None:
        """Return the local path of a file shipped with the application, or None for other files."""

    def real_path(self, path: str) -> str:
        """Return the absolute path with symbolic links resolved."""

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference ``${provider:path:key}``; `path` is empty in ``${provider:key}``."""

    provider: str
    path: str
    key: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a reference, for example ``${env:NAME}``."""
        provider, _, rest = text[len("${") : -len("}")].partition(":")
        path, colon, key = rest.partition(":")
        return cls(provider, path, key) if colon else cls(provider, "", rest)

    def __str__(self) -> str:
        path = f"{self.path}:" if self.path else ""
        return f"${{{self.provider}:{path}{self.key}}}"


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What this process may read. A limit that is None restricts nothing.

    process: the name of the process in error messages, for example "the driver" or "this executor".
    """

    process: str
    kinds: frozenset[str] | None = None
    paths: tuple[str, ...] | None = None
    variables: re.Pattern[str] | None = None
    urls: frozenset[str] | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], process: str) -> ProcessLimits:
        """Return the restrictions in the environment. Raise ConfigException if one is invalid."""
        kinds = _listed(environ.get(ALLOWED_PROVIDERS))
        paths = _listed(environ.get(ALLOWED_PATHS))
        urls = _listed(environ.get(ALLOWED_URLS))
        pattern = environ.get(ALLOWED_VARIABLES)
        if kinds is not None and kinds != [_NONE] and not {*kinds} <= {*_KINDS.values()}:
            raise ConfigException(
                f"{ALLOWED_PROVIDERS} of {process} is {', '.join(kinds)!r}: expected some of "
                f"{', '.join(_KINDS.values())}, or {_NONE}"
            )
        return cls(
            process,
            None if kinds is None else frozenset(kinds) - {_NONE},
            None if paths is None else _absolute(paths, f"{ALLOWED_PATHS} of {process}"),
            None if pattern is None else _pattern(pattern, f"{ALLOWED_VARIABLES} of {process}"),
            None if urls is None else frozenset(urls),
        )

    def check_kind(self, kind: str) -> None:
        """Raise ConfigException if a kind of provider (env, file or directory) is not allowed."""
        if self.kinds is not None and kind not in self.kinds:
            raise ConfigException(
                f"{ALLOWED_PROVIDERS} of {self.process} does not allow the provider {kind!r}"
            )

    def check_variable(self, name: str) -> None:
        """Raise ConfigException if an environment variable may not be read."""
        if self.variables is not None and not self.variables.fullmatch(name):
            raise ConfigException(
                f"{ALLOWED_VARIABLES} of {self.process} does not allow the variable {name!r}"
            )

    def allowed_path(self, path: str, files: Files) -> str:
        """Return the real path of a file. Raise ConfigException if the file may not be read.

        Files that were shipped with the application may always be read.
        """
        shipped = files.shipped(path)
        if shipped is not None:
            return shipped
        real_path = files.real_path(path)
        if self.paths is not None and not _is_within(real_path, self.paths, files):
            raise ConfigException(
                f"{ALLOWED_PATHS} of {self.process} does not allow the file {real_path}"
            )
        return real_path

    def check_url(self, url: str, description: str) -> None:
        """Raise ConfigException if this process may not use a URL.

        The process fetches tokens from the URL. With AWS_MSK_IAM, the signed URL is the token.

        description: the URL in error messages.
        """
        if self.urls is not None and url not in self.urls:
            raise ConfigException(f"{ALLOWED_URLS} of {self.process} does not allow {description}")


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider of values.

    paths, variables: the paths and the environment variables that it may read; None for no
    restriction.
    """

    kind: str
    paths: tuple[str, ...] | None = None
    variables: re.Pattern[str] | None = None


_GIVEN: Final = {kind: Provider(kind) for kind in _KINDS.values()}


def providers(named: Mapping[str, Mapping[str, str]]) -> dict[str, Provider]:
    """Return the providers by name: the three defaults, and those that `config.providers` names.

    named: the options of each named provider, without the prefix config.providers.NAME. Raise
    ConfigException for an option that is not supported.
    """
    return _GIVEN | {name: _provider(name, options) for name, options in named.items()}


def _provider(name: str, options: Mapping[str, str]) -> Provider:
    prefix = f"{CONFIG_PROVIDERS}.{name}."
    java_class = options.get("class", "")
    kind = _KINDS.get(java_class.rpartition(".")[2])
    if kind is None:
        raise ConfigException(
            f"{prefix}class is {shown_value(java_class)}: expected one of Kafka's "
            f"{', '.join(_KINDS)}"
        )
    param = f"param.{_PATTERN_PARAM if kind == ENV else _PATHS_PARAM}"
    unread = options.keys() - {"class", param}
    if unread:
        raise ConfigException(
            f"{prefix}{min(unread)} is not supported: a provider that {CONFIG_PROVIDERS} names has "
            f".class, .param.{_PATHS_PARAM} (file, directory) and .param.{_PATTERN_PARAM} (env)"
        )
    # As in Java, an empty value is no restriction.
    given = options.get(param)
    if not given:
        return Provider(kind)
    if kind == ENV:
        return Provider(kind, variables=_pattern(given, prefix + param))
    return Provider(kind, paths=_absolute(_listed(given) or [], prefix + param))


class _FilesOnce:
    """Finds and reads each file only once. Implements `Files`."""

    def __init__(self, files: Files) -> None:
        self.shipped = cache(files.shipped)
        self.real_path = cache(files.real_path)
        self.read = cache(files.read)


class References:
    """Finds and resolves references, if the options and the process allow it."""

    def __init__(
        self,
        named: Mapping[str, Provider],
        limits: ProcessLimits,
        environ: Mapping[str, str],
        files: Files,
    ) -> None:
        self._providers = named
        self._limits = limits
        self._environ = environ
        self._files = files

    def within(self, text: str) -> list[Reference]:
        """Return the references (``${…}``) in a value, except those with an unknown provider."""
        found = (Reference.of(text[begin:end]) for begin, end in written_references(text))
        return [each for each in found if each.provider in self._providers]

    def at_once(self) -> References:
        """Return a copy that reads each file only once.

        Several references to a file then get their values from the same version of the file, as in
        Java. Do not keep the result, because it does not notice when a file is replaced.
        """
        return References(self._providers, self._limits, self._environ, _FilesOnce(self._files))

    def resolved(self, option: str, text: str) -> str:
        """Return an option's value with its references (``${…}``) resolved.

        Each file is read once. Raise ConfigException, which does not show the value, if a reference
        is not allowed or has no value.
        """
        once = self.at_once()
        parts, at = [], 0
        for begin, end in written_references(text):
            reference = Reference.of(text[begin:end])
            provider = self._providers.get(reference.provider)
            if provider is None:
                continue
            try:
                value = once._value(provider, reference)  # noqa: SLF001 - of the same class
            except ConfigException as error:
                raise ConfigException(f"{option} has {reference}: {error}") from None
            parts += [text[at:begin], value]
            at = end
        return "".join([*parts, text[at:]])

    def _value(self, provider: Provider, reference: Reference) -> str:
        self._limits.check_kind(provider.kind)
        if not reference.key:
            raise ConfigException("the key is empty")
        if provider.kind == ENV:
            return self._variable(provider, reference)
        if not reference.path:
            raise ConfigException(f"a path is missing: write ${{{reference.provider}:/path:key}}")
        if provider.kind == FILE:
            return self._property(provider, reference)
        if "/" in reference.key or reference.key in (".", ".."):
            raise ConfigException("the key is not the name of a file in that directory")
        return self._text(provider, f"{reference.path.rstrip('/')}/{reference.key}")

    def _variable(self, provider: Provider, reference: Reference) -> str:
        if reference.path:
            raise ConfigException(
                f"the provider takes no path: write ${{{reference.provider}:NAME}}"
            )
        name = reference.key
        self._limits.check_variable(name)
        if provider.variables is not None and not provider.variables.fullmatch(name):
            raise ConfigException(f"its {_PATTERN_PARAM} does not allow the variable")
        value = self._environ.get(name)
        if value is None:
            raise ConfigException(f"the variable {name!r} is not set on {self._limits.process}")
        # Python puts half a surrogate pair in place of each byte that is not UTF-8.
        if value.encode(errors="replace").decode() != value:
            raise ConfigException(f"the variable {name!r} is not UTF-8 on {self._limits.process}")
        return value

    def _property(self, provider: Provider, reference: Reference) -> str:
        text = self._text(provider, reference.path)
        try:
            found = properties(text).get(reference.key)
        except ValueError as error:
            raise ConfigException(f"the file is not a properties file: {error}") from None
        if found is None:
            raise ConfigException(
                f"the file on {self._limits.process} has no property {reference.key!r}"
            )
        return found

    def _text(self, provider: Provider, path: str) -> str:
        try:
            real = self._limits.allowed_path(path, self._files)
            if provider.paths is not None and not _is_within(real, provider.paths, self._files):
                raise ConfigException(f"its {_PATHS_PARAM} does not allow the file {real}")
            return self._files.read(real).decode()
        except UnicodeDecodeError:
            why = "it is not UTF-8"
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
        raise ConfigException(f"the file {path} cannot be read on {self._limits.process}: {why}")


def _listed(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def _absolute(paths: list[str], what: str) -> tuple[str, ...]:
    relative = next((path for path in paths if not path.startswith("/")), None)
    if relative is not None:
        raise ConfigException(f"{what} has {shown_value(relative)}, which is not an absolute path")
    return tuple(paths)


def _pattern(text: str, what: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigException(f"{what} is not a regular expression: {error}") from None


def _is_within(real_path: str, allowed: tuple[str, ...], files: Files) -> bool:
    for path in allowed:
        folder = files.real_path(path).rstrip("/")
        if real_path == folder or real_path.startswith(f"{folder}/"):
            return True
    return False
