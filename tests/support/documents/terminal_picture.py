r"""Draw the output of a command as a picture of a terminal.

::

    PYTHONPATH=tests:jobs python -m support.documents.terminal_picture \
        docs/pictures/run.svg -- make demo

The command runs in a terminal of its own, so progress bars and colours are in the picture. Its
output is also shown as it comes. A command that fails makes no picture.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text

_WIDTH: Final = 100
_LINES: Final = 50
# Fonts from the network: pages that show a picture do not load them.
_FONT: Final = re.compile(r" *@font-face \{.*?\}\n", re.DOTALL)


def run_in_terminal(command: Sequence[str], width: int) -> tuple[int, str]:
    """Run a command in a terminal with `width` columns; return its exit code and its output."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, width, 0, 0))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its) as process:
        os.close(its)
        printed = bytearray()
        while data := _read(ours):
            printed += data
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        os.close(ours)
    return process.returncode, printed.decode(errors="replace")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's error for a terminal whose other end is closed
        return b""


def picture(title: str, printed: str, width: int, name: str) -> str:
    """Return the SVG of a terminal with this output.

    name: a prefix for the names in the picture, which must differ between pictures on one page.
    """
    console = Console(
        record=True,
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(Text(f"$ {title}", style="bold"))
    for line in AnsiDecoder().decode(_as_it_stays(printed)):
        console.print(line, soft_wrap=False)
    svg = _FONT.sub("", console.export_svg(title=title, unique_id=name))
    # Without this, some programs omit the spaces at the beginning of a line.
    return svg.replace("<svg ", '<svg xml:space="preserve" ', 1)


def _as_it_stays(printed: str) -> str:
    """Return the final text in the terminal: the last version of each rewritten line."""
    lines = printed.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines).strip("\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and draw the picture; return the command's exit code."""
    parser = argparse.ArgumentParser(description="Draw what a command prints.")
    parser.add_argument("picture", type=Path, help="the SVG file to write")
    parser.add_argument("--title", help="what the picture shows as the command")
    parser.add_argument("--width", type=int, default=_WIDTH, help="columns of the terminal")
    parser.add_argument("command", nargs="+", help="the command, after --")
    given = parser.parse_args(argv)
    code, printed = run_in_terminal(given.command, given.width)
    if code == 0:
        title = given.title or shlex.join(given.command)
        given.picture.write_text(picture(title, printed, given.width, given.picture.stem))
    return code


if __name__ == "__main__":
    sys.exit(main())
