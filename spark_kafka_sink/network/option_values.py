"""Values of options with their references resolved, in the process that connects.

Values of ``ssl.*`` and ``sasl.*`` may have references, such as ``${env:NAME}``. They are resolved
for each connection, so that no plan, pickle or pool contains the resolved values. Files that
options name are read completely, up to a limit. A name without a folder may be that of a file that
Spark has shipped to this process (`--files`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from spark_kafka_sink.auth.jaas import JaasEntry, check_module, parse_jaas
from spark_kafka_sink.auth.references import (
    ALLOWED_PATHS,
    ProcessLimits,
    References,
    providers,
)
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.errors import ConfigException, Option
from spark_kafka_sink.logs import without_path
from spark_kafka_sink.model import Secret

# A limit on memory; it is far more than any store or file of secrets has.
_MAX_FILE_BYTES: Final = 16 << 20
# Files of the kernel are not read, or a process's environment could be read in spite of the limits.
_KERNEL_FILES: Final = ("/proc/", "/sys/", "/dev/")
# Files in memory, where some keep their secrets.
_MEMORY: Final = "/dev/shm/"  # noqa: S108 - only compared
# A scheme such as dbfs: or s3://. A single letter may be a drive.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:)/")

_finders: list[Callable[[str], str | None]] = []
_names: list[Callable[[], str]] = [lambda: "this process"]


def find_shipped_files(find: Callable[[str], str | None]) -> None:
    """Look for names without a folder among shipped files, too.

    find: returns the path of such a file, None if there is none.
    """
    _finders[:] = [find]


def name_process(name: Callable[[], str]) -> None:
    """Set the name of this process in messages about files and variables that it cannot read.

    name: returns, for example, "the driver".
    """
    _names[:] = [name]


def shipped(path: str) -> str | None:
    """Return where a shipped file is, None for any other."""
    if not path or "/" in path:
        return None
    return next((found for find in _finders if (found := find(path)) is not None), None)


class Disk:
    """The files of this machine, as `auth.references.Files`."""

    def shipped(self, path: str) -> str | None:
        """Return where a shipped file is, None for any other."""
        return shipped(path)

    def real_path(self, path: str) -> str:
        """Return the absolute path without links."""
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raise OSError or ValueError if it cannot be used."""
        return content(path)


def _check_scheme(path: str) -> None:
    """Raise ValueError, with the remedy, for a URL, such as that of a file in s3: or dbfs:."""
    scheme = _SCHEME.match(path)
    if scheme is not None:
        raise ValueError(
            f"{scheme[1]} is not a folder of this machine: ship the file with --files, and set the "
            "option to its name"
        )


def content(path: str) -> bytes:
    """Return the contents of a file.

    Raise OSError or ValueError for other kinds and large files.
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


_JAAS_OPTION = "sasl.jaas.config"


class OptionValues:
    """The values of options as this process has them. Raise ConfigException for `config.providers`.

    config: has the providers.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self._files = Disk()
        named = {each.name: dict(each.options) for each in config.config_providers}
        self._limits = ProcessLimits.of(os.environ, _names[0]())
        self._references = References(providers(named), self._limits, os.environ, self._files)

    def resolved(self, option: str, text: str) -> str:
        """Return a value of an option with its references resolved. Raise ConfigException."""
        return self._references.resolved(str(Option(option)), text)

    def text(self, option: str, value: str | Secret | None) -> str | None:
        """Return the value of an option with its references resolved, None if it is unset."""
        text = value.value if isinstance(value, Secret) else value
        return None if text is None else self.resolved(option, text)

    def has_reference(self, text: str) -> bool:
        """Return whether a value has a reference."""
        return bool(self._references.within(text))

    def is_reference(self, text: str) -> bool:
        """Return whether a value is one reference and nothing else."""
        references = self._references.within(text)
        return len(references) == 1 and str(references[0]) == text.strip()

    def jaas(self, text: str, mechanism: str) -> JaasEntry:
        """Return the entry of `sasl.jaas.config`. Raise ConfigException if it is invalid."""
        if self.is_reference(text):
            # The value of a reference is not searched for references again.
            entry = parse_jaas(self.resolved(_JAAS_OPTION, text))
        else:
            entry = parse_jaas(text).resolved(lambda value: self.resolved(_JAAS_OPTION, value))
        check_module(entry, mechanism)
        return entry

    def shown_jaas(self, text: str, name: str) -> str:
        """Return an option of `sasl.jaas.config` for messages, with its references unresolved.

        If the entire text is a reference, return that.
        """
        return text.strip() if self.is_reference(text) else parse_jaas(text).options.get(name, "")

    def check_url(self, url: str) -> None:
        """Raise ConfigException if this process may not fetch tokens from a URL."""
        self._limits.check_url(url)

    def path(self, path: str) -> str:
        """Return where a file is that this process may read.

        A name without a folder may be that of a shipped file. Raise ConfigException, which does not
        show the path.
        """
        try:
            return self._limits.allowed_path(path, self._files)
        except ConfigException:
            why = f"{ALLOWED_PATHS} of {self._limits.process} does not allow it"
        except (OSError, ValueError) as error:
            why = without_path(error)
        raise ConfigException(why)

    def content(self, path: str, origin: str) -> bytes:
        """Return the contents of a file that this process may read.

        origin: the file in messages. Raise ConfigException, which does not show the path.
        """
        try:
            _check_scheme(path)
            return content(self.path(path))
        except ConfigException as error:
            why = str(error)
        except (OSError, ValueError) as error:
            why = without_path(error)
        raise ConfigException(f"{origin} cannot be read: {why}")

    def file(self, option: str, path: str) -> str:
        """Return the text of a file that this process may read; messages do not show its path."""
        origin = f"the file of {Option(option)}"
        try:
            return self.content(path, origin).decode()
        except UnicodeDecodeError:
            pass
        # Raised outside the handler, because the other exception contains a part of the text.
        raise ConfigException(f"{origin} cannot be read: it is not UTF-8")
