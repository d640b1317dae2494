"""References in values: Java's grammar, their values, and the limits of the process."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.jvm import run_java

from spark_kafka_sink.auth.references import (
    ALLOWED_PATHS,
    ALLOWED_PROVIDERS,
    ALLOWED_URLS,
    ALLOWED_VARIABLES,
    ProcessLimits,
    Provider,
    Reference,
    References,
    providers,
)
from spark_kafka_sink.config import written_references
from spark_kafka_sink.errors import ConfigException

ENVIRON: Final = {
    "SECRET": "hush",
    "LOOP": "${env:SECRET}",
    "AWS_SECRET": "quiet",
    "LATIN": "hush\udce4",  # as Python reads a byte that is not UTF-8
}
JAVA: Final = "org.apache.kafka.common.config.provider."
PIECES: Final = ("$", "{", "}", ":", "${", "${env:", "${file:", "${none:", "a", "B", "/", " ", "\n")


class RealFiles:
    """The files of this machine."""

    def shipped(self, path: str) -> str | None:
        """Return that nothing was shipped."""
        return None

    def real_path(self, path: str) -> str:
        """Return the path without links."""
        return os.path.realpath(path)

    def read(self, path: str) -> bytes:
        """Return what a file has."""
        return Path(path).read_bytes()


class TellingFiles:
    """Files whose content is their path, as with the providers of the Java program."""

    def shipped(self, path: str) -> str | None:
        """Return that nothing was shipped."""
        return None

    def real_path(self, path: str) -> str:
        """Return the path unchanged."""
        return path

    def read(self, path: str) -> bytes:
        """Raise what a file that is not there raises."""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def references(
    named: dict[str, dict[str, str]] | None = None, limits: dict[str, str] | None = None
) -> References:
    """Return the references that a process with such an environment looks up."""
    set_limits = ProcessLimits.of(limits or {}, "the driver")
    return References(providers(named or {}), set_limits, ENVIRON, RealFiles())


class ReplacedFiles(TellingFiles):
    """Files that another program replaces after each read."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, path: str) -> bytes:
        """Return the number of the read as the value of both keys."""
        self.reads += 1
        return f"a={self.reads}\nb={self.reads}\n".encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of secrets, one file of properties, and a link that leads out of it."""
    inside = tmp_path / "secrets"
    inside.mkdir()
    (inside / "k.properties").write_text("password=hush\njaas=X required;\nloop=${env:SECRET}\n")
    (inside / "service.key").write_text("-----BEGIN\nkey\n")
    (inside / "binary").write_bytes(b"hush\xff")
    (inside / "broken.properties").write_text("a=hush\\u1\n")
    (tmp_path / "outside.properties").write_text("password=quiet\n")
    (inside / "link.properties").symlink_to(tmp_path / "outside.properties")
    (tmp_path / "secrets-of-others").mkdir()
    (tmp_path / "secrets-of-others" / "k.properties").write_text("password=quiet\n")
    return inside


def test_each_provider_gives_what_it_is_asked_for(folder: Path) -> None:
    found = references()
    assert found.resolved("o", "${env:SECRET}") == "hush"
    assert found.resolved("o", f"${{file:{folder}/k.properties:password}}") == "hush"
    assert found.resolved("o", f"${{directory:{folder}:service.key}}") == "-----BEGIN\nkey\n"
    assert found.resolved("o", f"${{directory:{folder}/:service.key}}") == "-----BEGIN\nkey\n"
    assert found.resolved("o", "a${env:SECRET}b${env:SECRET}$") == "ahushbhush$"


def test_all_references_of_a_value_to_a_file_are_of_one_version_of_it() -> None:
    limits = ProcessLimits.of({}, "the driver")
    found = References(providers({}), limits, ENVIRON, ReplacedFiles())
    text = "${file:/f:a} ${file:/f:b} ${directory:/:f}"
    assert found.resolved("o", text) == "1 1 a=1\nb=1\n"
    assert found.resolved("o", text) == "2 2 a=2\nb=2\n"
    once = found.at_once()
    assert [once.resolved("o", "${file:/f:a}"), once.resolved("p", "${file:/f:b}")] == ["3", "3"]


def test_what_a_reference_gives_is_not_looked_at_again(folder: Path) -> None:
    assert references().resolved("o", "${env:LOOP}") == "${env:SECRET}"
    text = f"${{file:{folder}/k.properties:loop}}"
    assert references().resolved("o", text) == "${env:SECRET}"


@pytest.mark.parametrize(
    "text", ["${x:y}", "${env}", "${:a}", "$env:SECRET", "${env:SECRET", "{a:b}"]
)
def test_what_names_no_known_provider_stays_as_written(text: str) -> None:
    assert references().resolved("o", text) == text
    assert references().within(text) == []


def test_references_are_found_without_looking_them_up() -> None:
    found = references().within("${env:NO} ${x:y} ${file:/a:b:c} ${directory:k}")
    assert found == [
        Reference("env", "", "NO"),
        Reference("file", "/a", "b:c"),
        Reference("directory", "", "k"),
    ]
    assert list(map(str, found)) == ["${env:NO}", "${file:/a:b:c}", "${directory:k}"]


def _telling(text: str) -> str:
    """Return what the Java program's providers make of a text, in our grammar."""
    pairs = {"env": Provider("env"), "file": Provider("file")}
    found = iter(References(pairs, ProcessLimits("us"), {}, TellingFiles()).within(text))
    written = [f"<{each.path}|{each.key}>" for each in found]
    plain = References(pairs, ProcessLimits("us"), {}, TellingFiles())
    parts = re.split(r"(\$\{[^}]*?:(?:[^}]*?:)?[^}]*?\})", text)
    return "".join(
        written.pop(0) if plain.within(part) and part[:1] == "$" else part for part in parts
    )


def test_java_finds_the_same_references(tmp_path: Path) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    random = Random(seed)
    texts = ["".join(random.choices(PIECES, k=random.randint(1, 12))) for _ in range(3_000)]
    lines = tmp_path / "texts"
    lines.write_text("\n".join(text.encode("utf-16-be").hex() for text in texts))
    java = run_java("ReadReferences", lines, "references").splitlines()
    for text, java_value in zip(texts, java, strict=True):
        # In Java, what has an empty path has none.
        expected = bytes.fromhex(java_value.rstrip(".")).decode("utf-16-be").replace("<null|", "<|")
        assert (text, _telling(text)) == (text, expected)


def test_references_are_found_as_by_java_s_pattern_but_soon() -> None:
    java = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
    random = Random(1)
    for _ in range(5_000):
        text = "".join(random.choices("${}:ab\n", k=random.randint(1, 30)))
        found = [(*each.span(), each[1], each[2] or "", each[3]) for each in java.finditer(text)]
        ours = [(*each, Reference.of(text[slice(*each)])) for each in written_references(text)]
        assert [(b, e, r.provider, r.path, r.key) for b, e, r in ours] == found, text


@pytest.mark.parametrize("piece", ["${", "${a:", "${a:b:", "${:", ":"])
@pytest.mark.parametrize("end", ["", "}"])
def test_references_are_found_soon_in_every_text(piece: str, end: str) -> None:
    # A pattern takes minutes for such texts, and no signal ends its search in this process.
    look = (
        "from spark_kafka_sink.auth.references import ProcessLimits, References, providers; "
        "from spark_kafka_sink.config import reference_hint; "
        f"text = '${{' + {piece!r} * 500_000 + {end!r}; "
        "from spark_kafka_sink.network.option_values import Disk; "
        "found = References(providers({}), ProcessLimits('us'), {}, Disk()); "
        "assert found.within(text) == []; assert found.resolved('o', text) == text; "
        "reference_hint(text)"
    )
    done = subprocess.run([sys.executable, "-c", look], check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("${env:NO}", r"o has \$\{env:NO\}: the variable 'NO' is not set on the driver"),
        ("${env:LATIN}", r"o has \$\{env:LATIN\}: the variable 'LATIN' is not UTF-8 on the driver"),
        ("${env:}", "the key is empty"),
        ("${env:a:SECRET}", r"the provider takes no path: write \$\{env:NAME\}"),
        ("${file:key}", r"a path is missing: write \$\{file:/path:key\}"),
        ("${directory:key}", "a path is missing"),
        ("${file:FOLDER/none:a}", "cannot be read on the driver: No such file or directory"),
        ("${file:FOLDER:a}", "cannot be read on the driver: Is a directory"),
        ("${file:\0:a}", "cannot be read on the driver: .*null"),
        ("${file:FOLDER/k.properties:no}", "the file on the driver has no property 'no'"),
        ("${file:FOLDER/binary:no}", "cannot be read on the driver: it is not UTF-8"),
        ("${file:FOLDER/broken.properties:a}", "is not a properties file"),
        ("${directory:FOLDER:../outside.properties}", "not the name of a file in that directory"),
        ("${directory:FOLDER:..}", "not the name of a file in that directory"),
        ("${directory:FOLDER:none}", "No such file or directory"),
    ],
)
def test_what_gives_nothing_is_an_error_that_shows_no_value(
    text: str, sentence: str, folder: Path
) -> None:
    with pytest.raises(ConfigException, match=sentence) as caught:
        references().resolved("o", "${env:SECRET}" + text.replace("FOLDER", str(folder)))
    assert "hush" not in "".join(traceback.format_exception(caught.value))


def test_config_providers_give_names_and_narrow(folder: Path) -> None:
    named = {
        "mine": {"class": f"{JAVA}FileConfigProvider", "param.allowed.paths": f"/none,{folder}"},
        "vars": {"class": f"{JAVA}EnvVarConfigProvider", "param.allowlist.pattern": "SEC.*"},
        "dir": {"class": "DirectoryConfigProvider", "param.allowed.paths": ""},
    }
    found = references(named)
    outside = folder.parent / "outside.properties"
    assert found.resolved("o", f"${{mine:{folder}/k.properties:password}}") == "hush"
    assert found.resolved("o", f"${{dir:{folder.parent}:outside.properties}}") == "password=quiet\n"
    assert found.resolved("o", "${vars:SECRET}") == "hush"
    for text in (
        f"${{mine:{outside}:password}}",
        f"${{mine:{folder}/../outside.properties:password}}",
        f"${{mine:{folder}/link.properties:password}}",
        f"${{mine:{folder}-of-others/k.properties:password}}",
    ):
        with pytest.raises(ConfigException, match=r"its allowed\.paths does not allow the file"):
            found.resolved("o", text)
    with pytest.raises(ConfigException, match=r"its allowlist\.pattern does not allow"):
        found.resolved("o", "${vars:AWS_SECRET}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"config\.providers\.v\.class is ''"),
        (
            {"class": "com.acme.VaultProvider"},
            r"'com\.acme\.VaultProvider': expected one of Kafka's EnvVarConfigProvider, File",
        ),
        (
            {"class": "EnvVarConfigProvider", "param.allowed.paths": "/a"},
            r"v\.param\.allowed\.paths is not supported",
        ),
        (
            {"class": "FileConfigProvider", "param.allowed.paths": "a"},
            r"v\.param\.allowed\.paths has 'a', which is not an absolute path",
        ),
        (
            {"class": "EnvVarConfigProvider", "param.allowlist.pattern": "("},
            r"v\.param\.allowlist\.pattern is not a regular expression",
        ),
    ],
)
def test_other_providers_and_parameters_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigException, match=sentence):
        providers({"v": options})


@pytest.mark.parametrize(
    ("limits", "text", "sentence"),
    [
        ({ALLOWED_PROVIDERS: "none"}, "${env:SECRET}", "does not allow the provider 'env'"),
        ({ALLOWED_PROVIDERS: ""}, "${env:SECRET}", "does not allow the provider 'env'"),
        ({ALLOWED_PROVIDERS: "file,directory"}, "${env:SECRET}", "not allow the provider 'env'"),
        ({ALLOWED_PROVIDERS: "env"}, "${other:FOLDER/k.properties:password}", "provider 'file'"),
        ({ALLOWED_VARIABLES: "KAFKA_.*"}, "${env:SECRET}", "not allow the variable 'SECRET'"),
        ({ALLOWED_VARIABLES: "SECRE"}, "${env:SECRET}", "does not allow the variable 'SECRET'"),
        ({ALLOWED_VARIABLES: ""}, "${env:SECRET}", "does not allow the variable 'SECRET'"),
        ({ALLOWED_PATHS: "/none"}, "${file:FOLDER/k.properties:password}", "not allow the file"),
        ({ALLOWED_PATHS: ""}, "${other:FOLDER/k.properties:password}", "does not allow the file"),
        (
            {ALLOWED_PATHS: "FOLDER"},
            "${file:FOLDER/link.properties:password}",
            "not allow the file",
        ),
        ({ALLOWED_PATHS: "FOLDER"}, "${directory:FOLDER/..:outside.properties}", "not allow the f"),
        ({ALLOWED_PATHS: "FOLDER"}, "${directory:FOLDER:link.properties}", "not allow the file"),
        ({ALLOWED_PATHS: "FOLDER"}, "${file:FOLDER-of-others/k.properties:password}", "not allow"),
    ],
)
def test_what_the_process_forbids_no_option_allows(
    limits: dict[str, str], text: str, sentence: str, folder: Path
) -> None:
    named = {"other": {"class": f"{JAVA}FileConfigProvider", "param.allowed.paths": "/"}}
    given_limits = {name: value.replace("FOLDER", str(folder)) for name, value in limits.items()}
    with pytest.raises(ConfigException, match=sentence) as caught:
        references(named, given_limits).resolved("o", text.replace("FOLDER", str(folder)))
    assert f"{next(iter(limits))} of the driver" in str(caught.value)
    # Without the limit it has a value.
    assert references(named).resolved("o", text.replace("FOLDER", str(folder)))


def test_what_the_process_allows_is_read(folder: Path) -> None:
    limits = {
        ALLOWED_PROVIDERS: "env, file",
        ALLOWED_PATHS: f"/none,{folder}/",
        ALLOWED_VARIABLES: "SECRET|OTHER",
        ALLOWED_URLS: "https://a/token,https://b/token",
    }
    found = references(limits=limits)
    assert found.resolved("o", "${env:SECRET}") == "hush"
    assert found.resolved("o", f"${{file:{folder}/k.properties:password}}") == "hush"


def test_a_link_to_an_allowed_folder_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(folder)
    for allowed in (f"{tmp_path}/mounted", str(folder)):
        found = references(limits={ALLOWED_PATHS: allowed})
        text = f"${{file:{tmp_path}/mounted/k.properties:password}}"
        assert found.resolved("o", text) == "hush"


def test_tokens_are_fetched_from_allowed_urls_only() -> None:
    limits = ProcessLimits.of({ALLOWED_URLS: "https://a/token, file:///t"}, "this executor")
    for url in ("https://a/token", "file:///t"):
        limits.check_url(url, "it")
    for url in ("https://a/token/", "https://user:hush@a/token", "file:///etc/shadow", ""):
        with pytest.raises(ConfigException, match=f"{ALLOWED_URLS} of this executor") as caught:
            limits.check_url(url, "it")
        assert "hush" not in str(caught.value)
    ProcessLimits.of({}, "the driver").check_url("https://anything", "it")


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {ALLOWED_PROVIDERS: "env,vault"},
            "is 'env, vault': expected some of env, file, directory",
        ),
        ({ALLOWED_PROVIDERS: "none,env"}, "expected some of env, file, directory, or none"),
        ({ALLOWED_PATHS: "secrets"}, "has 'secrets', which is not an absolute path"),
        ({ALLOWED_VARIABLES: "["}, "is not a regular expression"),
    ],
)
def test_limits_that_are_no_limits_are_refused(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigException, match=sentence):
        ProcessLimits.of(environ, "the driver")


@given(st.text("${}:abenv", max_size=200))
def test_a_text_without_providers_stays_as_it_is(text: str) -> None:
    assert References({}, ProcessLimits("us"), {}, RealFiles()).resolved("o", text) == text
