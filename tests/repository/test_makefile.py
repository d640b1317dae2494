"""The Makefile, run by make with a PATH of its own: what is missing or broken is one sentence."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = ROOT / "Makefile"
TIMEOUT_S = 60
NEEDS_JAVA = (
    *("broker", "demo", "test", "test-long", "test-security", "test-faults"),
    *(
        "test-exactly-once",
        "test-matrix",
        "test-places",
        "test-registry",
        "mutants",
        "bench",
        "dist",
    ),
)
NEEDS_JDK = ("test", "test-long", "test-lowest", "mutants")
JAVA_8 = "echo 'java version \"1.8.0_412\"' >&2"
JRE_21 = "echo 'openjdk version \"21.0.1\"' >&2"
JAVA_21 = f"{JRE_21}; echo jdk.compiler@21.0.1"

# A python3 that makes environments as its last lines say, and otherwise is this one.
PYTHON = f"""
case "$*" in
    "-m venv "*) ;;
    *) exec {sys.executable} "$@" ;;
esac
mkdir -p $3/bin
"""
# Every command of the environment prints its arguments, and the java that it would find.
COMPLETE = (
    "for each in python pip pytest ruff mypy lint-imports codespell; do "
    "ln -sf {command} $3/bin/$each; done"
)
COMMAND = 'echo "${0##*/} $*"; echo "java: $(command -v java)"'
# venv has made Python, but not pip, when it fails or Ctrl-C ends it.
WITHOUT_PIP = "ln -sf {false} $3/bin/python; echo 'disk full' >&2; "
FAILS, STOPPED = WITHOUT_PIP + "exit 1", WITHOUT_PIP + "kill -INT $$"
# Make's own lines, also those of the make inside the lock.
OF_MAKE = re.compile(r"make(\[1\])?: (\*\*\*|Deleting) ")
WITHOUT_ENSUREPIP = 'case "$*" in *ensurepip*) exit 1 ;; esac'


def write_command(path: Path, script: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def _heed_interrupts() -> None:
    """Let Ctrl-C end make, even if the test runner ignores it (nohup)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Project:
    """A folder with the Makefile and what it names, and the only folder on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder / "project", folder / "path"
        for each in (self.folder, self.path):
            each.mkdir()
        for name in (
            "Makefile",
            "benchmarks",
            "jobs",
            "pyproject.toml",
            "pyspark_pykafka.py",
            "tests",
        ):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "spark_kafka_sink").mkdir()
        for tool in ("sh", "find", "grep", "sed", "touch", "mkdir", "ln"):
            (self.path / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool} here"))
        self.command = write_command(folder / "environment" / "command", COMMAND)
        self.has_java(JAVA_21)
        self.makes_environments(COMPLETE)

    def has_java(self, script: str) -> None:
        """Put a java on the PATH."""
        write_command(self.path / "java", script)

    def makes_environments(self, script: str, before: str = "") -> None:
        """Put a python3 on the PATH whose venv does so."""
        made = script.format(command=self.command, false=shutil.which("false"))
        write_command(self.path / "python3", before + PYTHON + made)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start make."""
        return subprocess.Popen(
            [shutil.which("make") or "make", "--silent", *arguments],
            cwd=self.folder,
            env={"PATH": str(self.path), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_interrupts,  # noqa: PLW1509 - one system call, no locks
        )

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run make."""
        with self.start(*arguments, **environment) as started:
            output, errors = started.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(arguments, started.returncode, output, errors)

    def refusal(self, *arguments: str, **environment: str) -> list[str]:
        """Run make, which must fail; return its output without make's own line."""
        ended = self.make(*arguments, **environment)
        assert ended.returncode != 0, ended.stdout
        assert ended.stdout == ""
        lines = ended.stderr.splitlines()
        return [line for line in lines if not OF_MAKE.match(line)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    return Project(tmp_path)


@pytest.mark.parametrize("target", [*NEEDS_JAVA, "test-lowest"])
def test_missing_java_is_one_sentence(project: Project, target: str) -> None:
    (project.path / "java").unlink()
    assert project.refusal(target) == [
        "Java is missing: there is none on the PATH; install a JDK or JRE of version 17 or newer"
    ]


@pytest.mark.parametrize("target", NEEDS_JDK)
def test_java_without_its_compiler_is_one_sentence(project: Project, target: str) -> None:
    project.has_java(JRE_21)
    assert project.refusal(target) == [
        f"the tests compile programs in Java, and {project.path}/java has no compiler, as it is a "
        "JRE: install a JDK of version 17 or newer"
    ]


@pytest.mark.parametrize("target", ["broker", "demo", "bench"])
def test_a_jre_is_enough_without_tests(project: Project, target: str) -> None:
    project.has_java(JRE_21)
    assert project.make(target).returncode == 0


def test_packages_that_cannot_be_installed_are_one_sentence(project: Project) -> None:
    said = "printf '%s\\n' 'WARNING: Retrying' '  ERROR: Could not find x' ' ERROR: No x' note >&2"
    write_command(project.command, f'case "$*" in *install*) {said}; exit 1 ;; esac')
    started = project.make("broker")
    assert [line for line in started.stderr.splitlines() if not OF_MAKE.match(line)] == [
        "The packages could not be installed (No x): check the network, and run make again. All "
        "that pip says is in .venv/pip.log."
    ]
    log = project.folder / ".venv" / "pip.log"
    assert log.read_text().splitlines()[0] == "WARNING: Retrying"


@pytest.mark.parametrize("target", [*NEEDS_JAVA, "test-lowest"])
def test_old_java_is_one_sentence(project: Project, target: str) -> None:
    project.has_java(JAVA_8)
    assert project.refusal(target) == [
        f"Java is too old for Spark and Kafka: {project.path}/java is of version 8; "
        "install a JDK or JRE of version 17 or newer"
    ]


def test_what_is_no_java_is_one_sentence(project: Project) -> None:
    project.has_java("echo 'no runtime here' >&2")
    assert project.refusal("demo") == [
        f"Java does not print its version: {project.path}/java -version says 'no runtime here'; "
        "install a JDK or JRE of version 17 or newer"
    ]


def test_java_home_without_java_is_one_sentence(project: Project) -> None:
    assert project.refusal("demo", JAVA_HOME="/nowhere") == [
        "Java is missing: JAVA_HOME is /nowhere, which has none; "
        "install a JDK or JRE of version 17 or newer"
    ]


@pytest.mark.parametrize("on_the_path", [None, JAVA_8], ids=["none", "an old one"])
def test_the_java_of_java_home_is_enough(
    project: Project, tmp_path: Path, on_the_path: str | None
) -> None:
    (project.path / "java").unlink()
    if on_the_path is not None:
        project.has_java(on_the_path)
    (tmp_path / "jdk").mkdir()
    java = write_command(tmp_path / "jdk" / "bin" / "java", JAVA_21)
    ended = project.make("test", JAVA_HOME=str(tmp_path / "jdk"))
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout.splitlines()
    (ran,) = [at for at, line in enumerate(said) if line.startswith("pytest ")]
    assert said[ran + 1] == f"java: {java}"


def test_old_python_is_one_sentence(project: Project) -> None:
    write_command(project.path / "python3", "exit 1")
    (said,) = project.refusal("demo")
    assert said.startswith("Python 3.11 or newer is missing: install it, or name one with")


@pytest.mark.parametrize("target", NEEDS_JAVA)
def test_python_without_venv_is_one_sentence_however_often(project: Project, target: str) -> None:
    project.makes_environments(COMPLETE, before=WITHOUT_ENSUREPIP)
    for _ in range(2):
        (said,) = project.refusal(target)
        assert said.startswith("Python's modules venv and ensurepip are missing: install them")


def test_an_environment_that_cannot_be_made_is_told_however_often(project: Project) -> None:
    project.makes_environments(FAILS)
    for _ in range(2):
        reason, said = project.refusal("demo")
        assert reason == "disk full"
        assert said.startswith("The virtual environment .venv could not be made")


@pytest.mark.parametrize("broken_off", [FAILS, STOPPED], ids=["failed", "stopped"])
@pytest.mark.parametrize(
    ("target", "says"), [("demo", "python jobs/demo.py"), ("bench", "python -m bench.each_cell")]
)
def test_an_environment_that_was_broken_off_is_made_again(
    project: Project, broken_off: str, target: str, says: str
) -> None:
    project.makes_environments(broken_off)
    project.refusal(target)
    project.makes_environments(COMPLETE)
    ended = project.make(target)
    assert ended.returncode == 0, ended.stderr
    assert says in ended.stdout


def test_an_environment_that_is_there_is_used(project: Project) -> None:
    assert project.make("demo").returncode == 0
    project.makes_environments(FAILS)
    (project.folder / ".venv" / ".demo").unlink()
    ended = project.make("demo")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("first", "second", "installs"),
    [
        ("demo", "demo", ["demo"]),
        ("test", "broker", ["test"]),
        ("broker", "demo", ["spark", "demo"]),
    ],
)
def test_of_two_at_once_the_second_waits_until_the_environment_is_made(
    project: Project, first: str, second: str, installs: list[str]
) -> None:
    for name in ("begun", "may-end"):
        os.mkfifo(project.folder / name)
    project.makes_environments(f"echo > begun; read _ < may-end; {COMPLETE}")
    with project.start(first) as one:
        (project.folder / "begun").read_text()
        with project.start(second) as other:
            assert other.stdout is not None
            assert other.stdout.readline().startswith("waiting for another make that installs ")
            (project.folder / "may-end").write_text("\n")
            said = [each.communicate(timeout=TIMEOUT_S) for each in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], said
    assert re.findall(
        r"^installing spark-kafka-sink\[(\w+)\]", said[0][0] + said[1][0], re.MULTILINE
    ) == (installs)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("STREAM=1", "python jobs/demo.py --stream"),
        ("STREAM=0", "python jobs/demo.py"),
        ("STREAM=", "python jobs/demo.py"),
        ("BOOTSTRAP=h:1", "python jobs/demo.py --bootstrap h:1"),
        ("KEEP=1", "python jobs/demo.py --keep"),
        ("ALL=1", "python jobs/demo.py --all"),
        ("ALL=0", "python jobs/demo.py"),
    ],
)
def test_settings_of_the_demo(project: Project, setting: str, says: str) -> None:
    ended = project.make("demo", setting)
    assert ended.returncode == 0, ended.stderr
    said = [line.split() for line in ended.stdout.splitlines()]
    assert says.split() in said


def test_the_soak_is_simulated_clusters_and_threads_and_then_every_test_of_damaged_answers(
    project: Project,
) -> None:
    write_command(project.command, f'{COMMAND}; echo "inputs: $FUZZ_EXAMPLES"')
    ended = project.make("soak", "SEEDS=7")
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stdout.splitlines() if "java" not in line][-16:] == [
        "python -m simulation --seeds 7 --first 0",
        "inputs: ",
        "python -m simulation --transactions --seeds 7 --first 0",
        "inputs: ",
        "python -m simulation --sessions --seeds 7 --first 0",
        "inputs: ",
        "python -m simulation.exactly_once --seeds 7 --first 0",
        "inputs: ",
        "python -m simulation.exactly_once --seeds 4 --versions 500 --first 0",
        "inputs: ",
        "python -m simulation.threads --seeds 7 --first 0",
        "inputs: ",
        "python -m simulation.threads --interrupts --seeds 7 --first 0",
        "inputs: ",
        "pytest -n auto --timeout 7200"
        " tests/unit/wire/test_decode_fuzz.py tests/unit/wire/test_wire_oracle.py",
        "inputs: 100000",
    ]


def test_the_end_of_make_test_names_every_target_that_tests_more(project: Project) -> None:
    said = project.make("test").stdout.splitlines()[-1]
    targets = re.findall(r"^(test-[a-z-]+|soak|docs|dist):", MAKEFILE.read_text(), re.MULTILINE)
    assert len(targets) == 11
    assert [each for each in targets if f"make {each}" not in said] == []


def test_the_contributors_page_lists_every_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", MAKEFILE.read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "contributing" / "README.md").read_text()
    assert {"test", "links"} <= set(targets)
    assert [each for each in targets if each != "help" and f"| `make {each}` |" not in page] == []


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("STREAM=yes", "STREAM is 'yes': expected 1, for streams too, or 0"),
        ("STREAM=2", "STREAM is '2': expected 1, for streams too, or 0"),
        ("KEEP=yes", "KEEP is 'yes': expected 1, to keep the topics on a broker of your own, or 0"),
        ("ALL=yes", "ALL is 'yes': expected 1, for exactly once and TLS too, or 0"),
    ],
)
def test_a_setting_of_the_demo_that_is_neither_0_nor_1_is_refused(
    project: Project, dry: tuple[str, ...], setting: str, says: str
) -> None:
    (said,) = project.refusal(*dry, "demo", setting)
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* {re.escape(says)}\.  Stop\.", said)
