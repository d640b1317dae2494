"""results.json: what was measured, as a file that later runs and the documents read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import bench_cells
import bench_ratios
import bench_turns
import msgspec
import running

_NAME: Final = "results.json"


def read(folder: Path) -> tuple[dict[str, bench_ratios.Measured], dict[str, Any]]:
    """Give a folder's cells, and what is told of their run; nothing where it has no such file.

    Raises JobError where the file is not what `write` of this release makes.
    """
    path = folder / _NAME
    if not path.exists():
        return {}, {}
    try:
        return _cells_of(json.loads(path.read_text()))
    except (ValueError, LookupError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        message = (
            f"{path} is not a report of this release's benchmark ({error}): give --output a "
            "folder that has one, or none"
        )
        raise running.JobError(message) from None


def _cells_of(found: Any) -> tuple[dict[str, bench_ratios.Measured], dict[str, Any]]:  # noqa: ANN401 - what a file has
    cells = {}
    for name, one in found["cells"].items():
        results = msgspec.convert(one["results"], list[bench_turns.Result])
        cell = msgspec.convert(one["cell"], bench_cells.Cell)
        cells[name] = bench_ratios.Measured(cell, {result.name: result for result in results})
    return cells, found["about"]


def write(
    folder: Path, cells: Mapping[str, bench_ratios.Measured], about: Mapping[str, Any]
) -> None:
    """Write what was measured."""
    found = {
        name: {
            "cell": asdict(one.cell) | {"kind": one.cell.kind.value},
            "results": [asdict(result) for result in one.results.values()],
        }
        for name, one in cells.items()
    }
    text = json.dumps({"about": about, "cells": found}, indent=1)
    (folder / _NAME).write_text(text + "\n")
