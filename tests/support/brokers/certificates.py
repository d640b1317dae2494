"""Certificates made with the openssl command: a root, an intermediate that signs, and leaves.

By default, leaves are valid for localhost, 127.0.0.1 and ::1.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOCAL_NAMES: Final = ("DNS:localhost", "IP:127.0.0.1", "IP:::1")
_CONFIG: Final = """
[req]
distinguished_name = name
prompt = no
[name]
CN = nobody
[ca]
default_ca = this
[this]
database = {folder}/index.txt
rand_serial = yes
new_certs_dir = {folder}
default_md = sha256
policy = any
unique_subject = no
copy_extensions = none
[any]
commonName = supplied
"""


def openssl(*arguments: str | Path, given: str | None = None) -> str:
    """Run openssl and return its output."""
    done = subprocess.run(
        ["openssl", *map(str, arguments)], input=given, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both PEM; `chain` also has the certificates that signed it.

    No chain contains the root.
    """

    name: str
    certificate: str
    key: str
    chain: str


class Authority:
    """Signs certificates in a folder of its own."""

    def __init__(self, folder: Path, name: str = "root") -> None:
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        (self._folder / "index.txt").touch()
        self._config = self._folder / "openssl.cnf"
        self._config.write_text(_CONFIG.format(folder=self._folder))
        self.root = self._made(name, None, ["basicConstraints=critical,CA:TRUE"])

    def intermediate(self, name: str = "intermediate") -> Certificate:
        """Return a certificate that signs, signed by the root."""
        return self._made(name, self.root, ["basicConstraints=critical,CA:TRUE"])

    def leaf(
        self,
        name: str,
        signer: Certificate | None = None,
        *,
        names: tuple[str, ...] = LOCAL_NAMES,
        dates: tuple[str, str] | None = None,
    ) -> Certificate:
        """Return a certificate of a server or a client, signed by the root or by `signer`.

        dates: the start and the end of its validity, for example 20200101000000Z.
        """
        extensions = [f"subjectAltName={','.join(names)}"] if names else []
        return self._made(name, signer or self.root, extensions, dates)

    def _made(
        self,
        name: str,
        signer: Certificate | None,
        extensions: list[str],
        dates: tuple[str, str] | None = None,
    ) -> Certificate:
        key = openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        files = {
            end: self._folder / f"{name}.{end}"
            for end in ("key", "csr", "ext", "pem", "signer", "signer-key")
        }
        files["key"].write_text(key)
        files["ext"].write_text("\n".join(extensions))
        subject: list[str | Path] = [
            "-config",
            self._config,
            "-subj",
            f"/CN={name}",
            "-key",
            files["key"],
        ]
        openssl("req", "-new", *subject, "-out", files["csr"])
        signed_by: list[str | Path] = ["-selfsign", "-keyfile", files["key"]]
        if signer is not None:
            files["signer"].write_text(signer.certificate)
            files["signer-key"].write_text(signer.key)
            signed_by = ["-cert", files["signer"], "-keyfile", files["signer-key"]]
        life = ["-startdate", dates[0], "-enddate", dates[1]] if dates else ["-days", "30"]
        given: list[str | Path] = [
            "-config",
            self._config,
            "-extfile",
            files["ext"],
            "-in",
            files["csr"],
        ]
        openssl("ca", "-batch", "-notext", *given, *signed_by, *life, "-out", files["pem"])
        certificate = files["pem"].read_text()
        is_own = signer is None or signer is getattr(self, "root", None)
        chain = certificate if is_own or signer is None else certificate + signer.chain
        return Certificate(name, certificate, key, chain)
