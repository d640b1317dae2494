"""The picture of a terminal in the README: what the script draws of what a command prints."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

import pytest
from support.documents import terminal_picture

PRINTS = r"""
print("\x1b[31mred\x1b[0m and plain")
print("\rwriting: 50%", end="")
print("\rwriting: 100%")
print("\rwriting again", end="")
print("\r             \r  indented")
"""


def shown(svg: str) -> list[str]:
    """Return the lines of a picture below its title."""
    by_line: dict[str, str] = {}
    for number, text in re.findall(r"<text [^>]*line-(\d+)\)\">(.*?)</text>", svg):
        by_line[number] = by_line.get(number, "") + unescape(text).replace("\xa0", " ")
    return [line.rstrip() for line in by_line.values()]


def test_a_picture_has_the_command_and_the_lines_as_they_stay(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    picture = tmp_path / "run.svg"
    code = terminal_picture.main(
        ["--title", "make demo", str(picture), "--", sys.executable, "-c", PRINTS]
    )
    svg = picture.read_text()
    assert code == 0
    assert shown(svg) == ["$ make demo", "red and plain", "writing: 100%", "  indented"]
    assert "font-face" not in svg
    assert b"writing: 50%" in capfdbinary.readouterr().out


def test_a_command_sees_a_terminal_of_the_width_of_the_picture() -> None:
    asks = "import os, sys; print(os.get_terminal_size(1).columns, sys.stderr.isatty())"
    assert terminal_picture.run_in_terminal([sys.executable, "-c", asks], 77) == (0, "77 True\r\n")


def test_a_command_that_fails_gets_no_picture(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "run.svg"), "--", sys.executable, "-c", "raise SystemExit(3)"]
    assert terminal_picture.main(arguments) == 3
    assert list(tmp_path.iterdir()) == []
