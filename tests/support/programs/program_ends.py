"""Programs that run to their end: their output and their exit codes.

All run at the same time, each in a fork of one process that has imported the shared modules. An
import of pyarrow for each would take longer than the programs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_TIMEOUT_S = 120
_TESTS = Path(__file__).parents[2]
_RUN = """
import json, os, signal, sys, tempfile

programs, running = json.load(sys.stdin), {}
exec(programs.pop("begin"), globals())
for name, program in programs.items():
    told = tempfile.TemporaryFile("w+")
    child = os.fork()
    if child == 0:
        # Ignored in what a shell runs in the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(told.fileno(), 2)
        break
    running[name] = child, told
else:
    ends = {}
    for name, (child, told) in running.items():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.seek(0)
        ends[name] = code, told.read()
    print(json.dumps(ends))
    sys.exit()
exec(program, globals())
"""


class ProgramEnd(NamedTuple):
    """How a program ended: its exit code (negative for a signal), and its stderr."""

    code: int
    stderr: str


def program_ends(begin: str, programs: Mapping[str, str]) -> dict[str, ProgramEnd]:
    """Run programs by name and return their ends; begin: the code at the start of each."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=json.dumps({"begin": begin, **programs}),
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        cwd=_TESTS,
    )
    assert done.returncode == 0, done.stderr
    return {name: ProgramEnd(*end) for name, end in json.loads(done.stdout).items()}
