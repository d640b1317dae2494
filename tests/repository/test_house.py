"""The house: its size, its rooms, its words, and the page that says where things are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grimp
import numpy as np
import pyarrow as pa
import pytest
from support.documents.named_tests import ROOT
from support.house import build_digest, code_lines, one_batch, rooms, sample, words

from spark_kafka_sink.wire.exchange import ClientRequest
from spark_kafka_sink.wire.messages import MetadataRequest, ProduceRequest

PACKAGE = ROOT / "spark_kafka_sink"
PAGE = ROOT / "docs" / "contributing" / "house.md"
ONE_BATCH = ROOT / "docs" / "contributing" / "one-batch.md"
DECISIONS = ROOT / "docs" / "decisions.md"
PLANNED_MODULES = ROOT / "tests" / "support" / "house" / "planned_modules.txt"
# Lower these with the code; they do not rise.
MOST_FLAT_MODULES = 10
MOST_LINES = 500
MOST_ON_THE_WAY = 26

PRODUCE = ProduceRequest(acks=1, timeout_ms=1, topic_data=[])
SOURCE = '''"""Has a docstring."""

import os

# A comment.


class Thing:
    """Another."""

    size: int = 1
    """Of an attribute, too."""

    def text(self) -> str:
        """Return it."""
        return """two
lines"""
'''


def test_lines_of_code_are_counted_without_comments_docstrings_and_imports() -> None:
    # class, size, def, return and its second line.
    assert code_lines.code_lines(SOURCE) == 5


def test_modules_are_counted_by_room() -> None:
    modules = {f"spark_kafka_sink/{name}": SOURCE for name in ("a.py", "b/c.py", "b/d/e.py")}
    counts, lines = code_lines.by_room({**modules, "spark_kafka_sink/b/__init__.py": "\n"})
    assert counts == {"(flat)": 1, "b": 1, "b/d": 1}
    assert lines.total() == 15


def test_few_modules_are_flat() -> None:
    flat = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert len(flat) <= MOST_FLAT_MODULES, sorted(flat)


def test_only_modules_that_decisions_name_have_over_500_lines() -> None:
    begin = "A test lets only these modules have over 500 lines: "
    sentence = DECISIONS.read_text().partition(begin)[2].partition(".\n")[0]
    named = re.findall(r"`([a-z_/]+)`", sentence)
    long = [
        str(path.relative_to(PACKAGE).with_suffix(""))
        for path in PACKAGE.rglob("*.py")
        if path.read_text().count("\n") > MOST_LINES
    ]
    assert sorted(named) == sorted(long), "list them, with the reason, in docs/decisions.md"


def test_one_batch_passes_the_modules_of_the_page_and_no_more_than_before() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.house.one_batch"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout, done.stderr
    found = re.match(r"(\d+) modules", done.stdout)
    assert found is not None
    assert int(found[1]) <= MOST_ON_THE_WAY, done.stdout
    text = ONE_BATCH.read_text()
    printed = done.stdout.removesuffix("\n")
    assert one_batch.page_with(text, printed) == text, (
        "run python -m support.house.one_batch --write"
    )


@pytest.mark.parametrize(
    ("thing", "is_of_batch"),
    [
        (pa.record_batch({"value": ["v"]}), True),
        ([("a partition", [memoryview(bytes(2000))])], True),
        (
            ClientRequest(node_id=1, message=ProduceRequest(acks=1, timeout_ms=1, topic_data=[])),
            True,
        ),
        (ClientRequest(node_id=1, message=MetadataRequest(topics=[])), False),
        (b"a header", False),
        (np.arange(5000), False),
    ],
)
def test_a_module_counts_if_it_gets_the_batch_and_not_what_is_measured_of_it(
    thing: object, *, is_of_batch: bool
) -> None:
    assert one_batch._is_of_batch(thing) is is_of_batch


def modules_with_a_reason() -> set[str]:
    """Return the modules in the lists of decisions.md, which begin with their room."""
    layout = DECISIONS.read_text().partition("\n## Layout\n")[2].partition("\n## ")[0]
    found = set()
    for point in re.findall(r"^- (`(?:[^\n]|\n )*)", layout, re.MULTILINE):
        room, *names = re.findall(r"`([^`]+)`", point)
        found |= {f"{room}/{name}" for name in names}
    return found


def test_each_module_that_was_not_planned_has_its_reason_among_the_decisions() -> None:
    there = {
        str(path.relative_to(PACKAGE).with_suffix(""))
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    planned = set(PLANNED_MODULES.read_text().split())
    assert there - planned - modules_with_a_reason() == set(), "add them to docs/decisions.md"
    assert planned - there == set(), "remove them from planned_modules.txt"
    assert modules_with_a_reason() - there == set(), "remove them from docs/decisions.md"


def test_no_two_modules_have_one_name() -> None:
    names = Counter(path.stem for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_imports_for_types_alone_make_no_circle_either() -> None:
    graph = grimp.build_graph("spark_kafka_sink", exclude_type_checking_imports=False)
    packages = {name.rpartition(".")[0] for name in graph.modules} - {""}
    circles = {name: found for name in packages if (found := graph.nominate_cycle_breakers(name))}
    assert circles == {}


def test_the_files_that_decisions_name_exist() -> None:
    names = re.findall(r"`([a-z_/]+\.py)`", DECISIONS.read_text())
    assert names
    assert [name for name in names if not any((at / name).exists() for at in (PACKAGE, ROOT))] == []


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    text = PAGE.read_text()
    assert rooms.with_picture(text) == text, "run python -m support.house.rooms --write"


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    imports = {"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset[str]()}
    assert list(rooms.reduced(imports)) == [("a", "b"), ("b", "c")]


def test_the_digest_of_builds_is_that_of_the_pickled_classes() -> None:
    text = build_digest.PLACE.read_text()
    assert build_digest.written(text) == text, f"run {build_digest.COMMAND}"


def test_the_digest_of_builds_covers_what_processes_pass_to_each_other() -> None:
    found = {each.name for each in build_digest.pickled_classes()}
    of_writers = {"SinkOptions", "ProducerConfig", "Plan", "CommitRecord", "JobToken", "JobTrace"}
    assert of_writers | {"SinkCommitMessage", "AttemptTransaction", "MicroBatch"} <= found


def questions() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the rows of the page's table of questions: question, modules, names."""
    for line in PAGE.read_text().partition("## Where is")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and ".py`" in cells[1]:
            paths = [name for name in re.findall(r"`([^`]+)`", cells[1]) if name.endswith(".py")]
            yield cells[0], paths, re.findall(r"`([^`]+)`", cells[2])


@pytest.mark.parametrize(("question", "paths", "names"), [*questions()])
def test_a_question_of_the_page_leads_to_what_is_there(
    question: str, paths: list[str], names: list[str]
) -> None:
    for path in paths:
        text = (PACKAGE / path).read_text()
        for name in names:
            assert re.search(rf"(def|class) {name}\b|^{name}\b", text, re.MULTILINE), (path, name)


def test_the_page_answers_what_a_newcomer_asks_first() -> None:
    asked = " ".join(question for question, _, _ in questions())
    for words_of_it in ("sent again", "too large", "TLS handshake", "complete job"):
        assert words_of_it in asked


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("judged = judge_row = 1", "name"),
        ("def f(wanted: int) -> None: ...", "name"),
        ("class WholeBatch: ...", "name"),
        ("x.is_told = True", "name"),
        ("import numpy as told", "name"),
        ("try:\n    f()\nexcept ValueError as turned: ...", "name"),
        ("match x:\n    case [*leaving]: ...", "name"),
        ("match x:\n    case {**wants}: ...", "name"),
        ("match x:\n    case int() as judging: ...", "name"),
        ('def f() -> int:\n    """Give the number."""', "begins"),
        ('def f() -> int:\n    """Return what is asked anew."""', "docstring"),
        ("# The caller is told.", "comment"),
        ("# Rows are sorted. What has a key comes first.", "comment"),
        ('def f() -> int:\n    """Return it.\n\n    Whatever has no key is last."""', "docstring"),
        ('raise ValueError(f"{x} is refused with a sentence")', "message"),
    ],
)
def test_a_word_of_a_dialect_is_found(source: str, rule: str) -> None:
    assert {each.rule for each in words.found_in_code("a/b.py", source)} == {rule}


@pytest.mark.parametrize(
    "source",
    [
        "returned = 1",
        "def test_the_caller_is_told() -> None: ...",
        'def f() -> int:\n    """Return the number."""',
        "import whole",
        'class Made:\n    """What a call returns."""',
        "# Ask the user. What is the name of the topic?",
    ],
)
def test_plain_words_are_not_found(source: str) -> None:
    assert list(words.found_in_code("a/b.py", source)) == []


def test_a_word_of_a_dialect_is_found_in_pages_and_settings() -> None:
    text = 'name = "an-error-is-told-twice"\nbreaks = "It asks anew."\nold = "whole = 1"\n'
    rules = [(each.rule, each.line) for each in words.found_in_text("tests/a.toml", text)]
    assert rules == [("name", 1), ("document", 2)]
    assert [each.rule for each in words.found_in_text("conf/a", text)] == ["document"]


def test_the_allow_list_only_shrinks() -> None:
    once, twice = (
        [words.Found("name", "spark_kafka_sink/client/a.py", 1, "turn")] * count for count in (1, 2)
    )
    limits = {"name": {"client": 2, "producer": 1}}
    assert '"client" = 1' in words.shrunk(once, limits)
    assert "producer" not in words.shrunk(once, limits)
    assert '"client" = 2' in words.shrunk(twice + once, limits)
    (problem,) = words.too_many(twice + once, limits)
    assert problem.startswith("name in client: 3 places, 2 allowed, such as spark_kafka_sink/")
    assert words.too_many(twice, limits) == []


@pytest.mark.parametrize(("options", "count"), [([], 80), (["--pages"], 60)])
def test_a_seed_draws_the_same_places_again(
    capsys: pytest.CaptureFixture[str], options: list[str], count: int
) -> None:
    drawn = []
    for seed in ("7", "7", "8"):
        sample.main([seed, *options])
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(re.findall(r"^\d+\. \[", drawn[0], re.MULTILINE)) == count


def test_the_hooks_are_commands_of_make_check() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    for tool in ("ruff format", "ruff check", "codespell", "support.house.words"):
        assert tool in hooks
        assert tool in check


def test_the_page_of_one_batch_names_modules_that_are_there() -> None:
    named = re.findall(r"^\d+\. `([^`]+)`", ONE_BATCH.read_text(), re.MULTILINE)
    assert named
    for name in named:
        path = Path(PACKAGE, f"{name}.py")
        assert path.exists() or Path(PACKAGE, name, "__init__.py").exists(), name
