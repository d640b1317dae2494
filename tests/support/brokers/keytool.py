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


def run(*arguments: str | Path, given: str | None = None) -> None:
    """Run keytool. Raise RuntimeError with what it says if it fails."""
    done = subprocess.run(
        ["keytool", *map(str, arguments)], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"keytool failed: {done.stdout}{done.stderr}")
