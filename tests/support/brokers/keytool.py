"""Java's keytool, which makes the stores that Java's users have."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def import_certificates(store: Path, certificates: Sequence[str], password: str) -> None:
    """Write a truststore of type PKCS12 with certificates, which are PEM."""
    for number, certificate in enumerate(certificates):
        run(
            "-importcert", "-noprompt", "-alias", f"ca-{number}", "-storetype", "PKCS12",
            "-keystore", store, "-storepass", password,
            given=certificate,
        )  # fmt: skip


def make_key(store: Path, alias: str, password: str) -> None:
    """Add a private key, with a certificate that it signs itself, to a store of type PKCS12."""
    run(
        "-genkeypair", "-alias", alias, "-keyalg", "EC", "-dname", f"CN={alias}",
        "-storetype", "PKCS12", "-keystore", store, "-storepass", password,
    )  # fmt: skip


def make_secret(store: Path, alias: str, password: str) -> None:
    """Add a secret key to a store of type PKCS12."""
    run(
        "-genseckey", "-alias", alias, "-keyalg", "AES", "-keysize", "128",
        "-storetype", "PKCS12", "-keystore", store, "-storepass", password,
    )  # fmt: skip


def run(*arguments: str | Path, given: str | None = None) -> None:
    """Run keytool. Raise RuntimeError with what it says if it fails."""
    done = subprocess.run(
        ["keytool", *map(str, arguments)], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"keytool failed: {done.stdout}{done.stderr}")
