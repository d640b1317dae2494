"""README.md and the pages of docs/: their blocks of code are code, and their URLs are URLs."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from support.documents import pages
from support.documents.named_tests import ROOT

# Output of programs, a diagram that a browser draws, and the file of an image.
UNREAD: Final = ("text", "mermaid", "dockerfile")
SHELL: Final = ("bash", "sh")
# The sites to which pages link. `make links` asks for each link.
LINKED: Final = ("github.com",)
# The hosts of URLs in code: names of examples, and services.
IN_CODE: Final = (
    *("127.0.0.1", "localhost", "host", "registry", "collector", "idp.example.com"),
    *("kafka.region.amazonaws.com", "namespace.servicebus.windows.net"),
    *("login.microsoftonline.com", "www.googleapis.com", "repo1.maven.org"),
)
_IN_CODE: Final = re.compile(r"https?://[^\s`'\"()>,…]+")
_HOST: Final = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
_PLACEHOLDER: Final = re.compile(r"[<>{}…]|\b[A-Z]{3,}\b|example\.")

each_page = pytest.mark.parametrize(
    "page", pages.PAGES, ids=lambda page: str(page.relative_to(ROOT))
)


def faults(language: str, block: str) -> Iterator[str]:
    """Yield what is wrong with a block of code."""
    if language == "python":
        yield from _faults_of_python(block)
    elif language in SHELL:
        yield from _faults_of_shell(block)
    elif language == "properties":
        lines = [line for line in block.splitlines() if not re.match(r"#|$", line)]
        yield from (line for line in lines if not re.fullmatch(r"[\w.-]+=\S.*", line))
    elif language not in UNREAD:
        yield f"the language is {language!r}"


def _faults_of_python(block: str) -> Iterator[str]:
    # Some blocks are only options, to be put into a chain of calls.
    code = f"(writer\n{block})" if block.startswith(".option(") else block
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        yield str(error)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spark_kafka"):
            module = importlib.import_module(node.module or "")
            yield from (each.name for each in node.names if not hasattr(module, each.name))


def _faults_of_shell(block: str) -> Iterator[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    read = subprocess.run([bash, "-n"], input=block, capture_output=True, text=True, check=False)
    yield from read.stderr.splitlines()
    for line in block.splitlines():
        if line.startswith(("$ ", "# ")):
            yield f"not a command: {line}"
        if re.search(r"<[A-Za-z]", line):
            yield f"the shell reads a file: {line}"


def faults_of_link(url: str) -> Iterator[str]:
    """Yield what is wrong with a link to another site."""
    parts = urlsplit(url)
    if parts.scheme != "https" or not _HOST.fullmatch(parts.netloc):
        yield f"{url}: no https or no host"
    elif parts.netloc not in LINKED:
        yield f"{url}: the site is not in LINKED"
    if _PLACEHOLDER.search(url):
        yield f"{url}: a placeholder"


@each_page
def test_each_block_names_its_language_and_is_written_in_it(page: Path) -> None:
    found = pages.fences(page.read_text())
    assert len(found) * 2 == len(re.findall(r"^ *```", page.read_text(), re.MULTILINE))
    assert [each for fence in found for each in faults(*fence)] == []


@pytest.mark.parametrize(
    ("language", "block", "fault"),
    [
        ("", "make broker\n", "the language is ''"),
        ("html", "1\n", "the language is 'html'"),
        ("python", "print(1\n", "'(' was never closed (<unknown>, line 1)"),
        ("python", "from spark_kafka_sink import register, unregister\n", "unregister"),
        ("sh", "$ make broker\n", "not a command: $ make broker"),
        ("bash", "job <version>\n", "the shell reads a file: job <version>"),
        ("properties", "# a comment\n\nspark.archives = a\n", "spark.archives = a"),
    ],
)
def test_a_fault_of_a_block_is_found(language: str, block: str, fault: str) -> None:
    assert fault in list(faults(language, block))


def test_a_command_that_bash_cannot_read_is_found() -> None:
    (first, *_) = faults("bash", "pip install 'x\nmake broker\n")
    assert "unexpected EOF" in first


@pytest.mark.parametrize(
    ("language", "block"),
    [
        ("python", '.option("topic", "t")\n.option("createTopics", "true")\n'),
        ("bash", 'pip install "x[spark]" && spark-submit \\\n  job.py  # a comment\n'),
        ("properties", "spark.archives=s3://BUCKET/a.tar.gz#a\n"),
        ("text", "2 rows\n"),
    ],
)
def test_what_is_code_has_no_fault(language: str, block: str) -> None:
    assert list(faults(language, block)) == []


@each_page
def test_each_link_to_another_site_is_a_url_of_a_site_that_is_listed(page: Path) -> None:
    links = pages.external_links(page.read_text())
    assert [fault for url in links for fault in faults_of_link(url)] == []


def test_a_fault_of_a_link_is_found() -> None:
    text = (
        "[a](https://github.com/lakehq/sail) `http://in.code` <https://github.com/OWNER/a>\n"
        "[b](http://github.com/a) https://gitlab.com/a\n```text\nhttps://in.a.block\n```\n"
    )
    urls = pages.external_links(text)
    assert [list(faults_of_link(url)) for url in urls] == [
        [],
        ["https://github.com/OWNER/a: a placeholder"],
        ["http://github.com/a: no https or no host"],
        ["https://gitlab.com/a: the site is not in LINKED"],
    ]


def test_the_lists_of_hosts_are_those_of_the_pages() -> None:
    texts = [page.read_text() for page in pages.PAGES]
    linked = {url for text in texts for url in pages.external_links(text)}
    urls = {url for text in texts for url in _IN_CODE.findall(text)} - linked
    assert {urlsplit(url).hostname for url in urls} == set(IN_CODE)
    assert {urlsplit(url).hostname for url in linked} == set(LINKED)
