"""Option values with their references resolved, in the process that connects.

Values of ``ssl.*`` and ``sasl.*`` may contain references, such as ``${env:NAME}``. They are
resolved for each connection, so that no plan, pickle or producer pool contains the resolved values.
Files that options name are read completely, up to a maximum size. A file name without a folder may
name a file that Spark has shipped to this process (`--files`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Final, Self

from spark_kafka_sink.auth.jaas import JaasEntry, check_module, parse_jaas
from spark_kafka_sink.auth.references import (
    ALLOWED_PATHS,
    ProcessLimits,
    References,
    providers,
)
from spark_kafka_sink.config import ProducerConfig, trimmed
from spark_kafka_sink.errors import ConfigException, Option
from spark_kafka_sink.logs import without_path
from spark_kafka_sink.model import Secret

# This limits the memory; keystores and files with secrets are far smaller.
_MAX_FILE_BYTES: Final = 16 << 20
# Kernel files are not read. Otherwise an option could read the environment of a process (/proc),
# although `ProcessLimits` restrict which environment variables it may read.
_KERNEL_FILES: Final = ("/proc/", "/sys/", "/dev/")
# A folder of files in memory, in which some users keep their secrets. Its files may be read.
_MEMORY: Final = "/dev/shm/"  # noqa: S108 - only compared
# A scheme such as dbfs: or s3://. A single letter may be a drive, so it does not match.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:)/")

_finders: list[Callable[[str], str | None]] = []
_names: list[Callable[[], str]] = [lambda: "this process"]


def find_shipped_files(find: Callable[[str], str | None]) -> None:
    """Let a file name without a folder also name a file that was shipped with the application.

    find: returns the local path of a shipped file, or None if no such file was shipped.
    """
    _finders[:] = [find]


def name_process(name: Callable[[], str]) -> None:
    """Set the name of this process in errors about files and references that it cannot read.

    name: returns the name, for example "the driver".
    """
    _names[:] = [name]


def shipped(path: str) -> str | None:
    """Return the local path of a file shipped with the application, or None for other files."""
    if not path or "/" in path:
        return None
    return next((found for find in _finders if (found := find(path)) is not None), None)


class Disk:
    """The files of this machine; implements `auth.references.Files`."""

    def shipped(self, path: str) -> str | None:
        """Return the local path of a file shipped with the application, or None for other files."""
        return shipped(path)

    def real_path(self, path: str) -> str:
        """Return the absolute path with symbolic links resolved."""
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raise OSError or ValueError if the file cannot be used."""
        return content(path)


def _check_scheme(path: str) -> None:
    """Raise ValueError, with a remedy, if a path is a URL, such as s3:/… or dbfs:/…."""
    scheme = _SCHEME.match(path)
    if scheme is not None and scheme[1].lower() == "file:":
        raise ValueError(f"it is a URL: write the path without {scheme[1]}")
    if scheme is not None:
        raise ValueError(
            f"{scheme[1]} is not a folder of this machine: ship the file with --files or "
            "SparkContext.addFile, and set the option to its name"
        )


def content(path: str) -> bytes:
    """Return the contents of a file.

    Raise OSError if the file cannot be read, and ValueError if it is not a regular file or is too
    large.
    """
    real = Path(os.path.realpath(path))
    # Check this before opening the file: opening a pipe would wait for a writer.
    is_of_kernel = str(real).startswith(_KERNEL_FILES) and not str(real).startswith(_MEMORY)
    if not stat.S_ISREG(real.stat().st_mode) or is_of_kernel:
        raise ValueError("it is not a regular file on a disk")
    with real.open("rb") as file:
        found = file.read(_MAX_FILE_BYTES + 1)
    if len(found) > _MAX_FILE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
    return found


def allowed_content(path: str) -> bytes:
    """Return the contents of a file that this process may read, or of a shipped file.

    Raise ConfigException, which does not show the path, if the file cannot be read.
    """
    return _allowed_content(path, ProcessLimits.of(os.environ, _names[0]()))


def _allowed_content(path: str, limits: ProcessLimits) -> bytes:
    try:
        _check_scheme(path)
        return content(_allowed_path(path, limits))
    except (OSError, ValueError) as error:
        why = without_path(error)
    raise ConfigException(why)


def _allowed_path(path: str, limits: ProcessLimits) -> str:
    try:
        return limits.allowed_path(path, Disk())
    except ConfigException:
        why = f"{ALLOWED_PATHS} of {limits.process} does not allow it"
    except (OSError, ValueError) as error:
        why = without_path(error)
    raise ConfigException(why)


_JAAS_OPTION = "sasl.jaas.config"


class OptionValues:
    """The values of options, resolved in this process.

    config: contains the option config.providers. Raise ConfigException if that is invalid.
    """

    def __init__(self, config: ProducerConfig) -> None:
        named = {each.name: dict(each.options) for each in config.config_providers}
        self._limits = ProcessLimits.of(os.environ, _names[0]())
        self._references = References(providers(named), self._limits, os.environ, Disk())

    def at_once(self) -> Self:
        """Return a copy whose references read each file only once (see `References.at_once`)."""
        found = copy(self)
        found._references = self._references.at_once()  # noqa: SLF001 - of the same class
        return found

    def resolved(self, option: str, text: str) -> str:
        """Return an option's value with its references (``${…}``) resolved, trimmed as in Java.

        The value is trimmed because files with secrets often end with a newline. Raise
        ConfigException if a reference cannot be resolved.
        """
        return trimmed(self._references.resolved(str(Option(option)), text))

    def text(self, option: str, value: str | Secret | None) -> str | None:
        """Return an option's value with its references (``${…}``) resolved, or None if unset."""
        text = value.value if isinstance(value, Secret) else value
        return None if text is None else self.resolved(option, text)

    def has_reference(self, text: str) -> bool:
        """Return whether a value contains a reference (``${…}``)."""
        return bool(self._references.within(text))

    def is_reference(self, text: str) -> bool:
        """Return whether a value is exactly one reference (``${…}``) and nothing else."""
        references = self._references.within(text)
        return len(references) == 1 and str(references[0]) == text.strip()

    def jaas(self, text: str, mechanism: str) -> JaasEntry:
        """Return the entry of `sasl.jaas.config`. Raise ConfigException if it is invalid."""
        is_reference = self.is_reference(text)
        if is_reference:
            # The resolved value of a reference is not searched for references again.
            entry = parse_jaas(self.resolved(_JAAS_OPTION, text))
        else:
            # As in Java, the values inside the entry are not trimmed.
            references, option = self._references.at_once(), str(Option(_JAAS_OPTION))
            entry = parse_jaas(text).resolved(lambda value: references.resolved(option, value))
        check_module(entry, mechanism, may_show_name=not is_reference)
        return entry

    def shown_jaas(self, text: str, name: str) -> str:
        """Return an option of `sasl.jaas.config` for error messages, with references unresolved.

        If the entire text is one reference (``${…}``), return that reference.
        """
        return text.strip() if self.is_reference(text) else parse_jaas(text).options.get(name, "")

    def references_of_jaas(self, text: str) -> list[str] | None:
        """Return the names of the options in `sasl.jaas.config` that contain references (``${…}``).

        Return None if the entire text is one reference.
        """
        if self.is_reference(text):
            return None
        return [
            name for name, value in parse_jaas(text).options.items() if self.has_reference(value)
        ]

    def has_reference_in_login(self, config: ProducerConfig) -> bool:
        """Return whether the user or the password for the brokers contains a reference."""
        if config.sasl_jaas_config is not None:
            text = config.sasl_jaas_config.value
            if self.is_reference(text):
                return True
            # Search the parsed values, because escapes can hide a reference in the text.
            options = parse_jaas(text).options
            values = [options.get("username", ""), options.get("password", "")]
        else:
            password = config.sasl_password
            values = [config.sasl_username or "", "" if password is None else password.value]
        return any(map(self.has_reference, values))

    def check_url(self, url: str, description: str) -> None:
        """Raise ConfigException if this process may not use a URL.

        The process uses a URL to fetch tokens from it, or (AWS_MSK_IAM) to sign it as a token.

        description: the URL in error messages.
        """
        self._limits.check_url(url, description)

    def path(self, path: str) -> str:
        """Return the real path of a file, if this process may read that file.

        A name without a folder may name a shipped file. Raise ConfigException, which does not show
        the path, if this process may not read the file.
        """
        return _allowed_path(path, self._limits)

    def content(self, path: str, origin: str) -> bytes:
        """Return the contents of a file that this process may read.

        origin: the name of the file in error messages. Raise ConfigException, which does not show
        the path, if the file cannot be read.
        """
        try:
            return _allowed_content(path, self._limits)
        except ConfigException as error:
            why = str(error)
        raise ConfigException(f"{origin} cannot be read: {why}")

    def file(self, option: str, path: str) -> str:
        """Return the text of a file that this process may read. Messages do not show its path."""
        origin = f"the file of {Option(option)}"
        try:
            return self.content(path, origin).decode()
        except UnicodeDecodeError:
            pass
        # Raised outside the handler, because the caught exception contains a part of the file.
        raise ConfigException(f"{origin} cannot be read: it is not UTF-8")
