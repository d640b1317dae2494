r"""Measures ways to write a DataFrame to Kafka, side by side in one Spark application.

Contenders write one after another, round by round, on the same cached rows and the same topic
settings. The ratios within one run are the results; they come first.

  spark-submit --jars <jars of Spark's own Kafka sink> \
    benchmarks/run.py --bootstrap host:port

`make bench` does it with an application and a broker for each cell. --list names cells and
contenders.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.cells import CELLS, CONTENDERS, CORE, Cell

# The modules that jobs share lie beside this folder.
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "jobs"))

from job import arguments, running

_NAME: Final = "run.py"
_EXTRAS: Final = ("psutil", "rich", "matplotlib", "confluent_kafka", "kafka")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, which `make bench` uses, too."""
    made = arguments.Parser(
        prog=_NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--bootstrap", metavar="HOST:PORT", help="brokers, separated by commas")
    which = made.add_mutually_exclusive_group()
    which.add_argument("--cells", nargs="+", metavar="CELL", default=list(CORE))
    which.add_argument("--all", action="store_true", help="every cell: two hours")
    made.add_argument("--contenders", nargs="+", metavar="R", default=list(CONTENDERS))
    made.add_argument("--rounds", type=int, default=5, help="rounds that count (%(default)s)")
    made.add_argument(
        "--warm-up",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="of rounds that do not count; before the first cell thrice as many (%(default)s)",
    )
    made.add_argument(
        "--scale", type=float, default=1.0, help="times the rows of every cell (%(default)s)"
    )
    made.add_argument("--before", type=Path, metavar="DIR", help="another checkout, for R1b")
    made.add_argument(
        "--tls-bootstrap", metavar="HOST:PORT", help="the same brokers' listener with TLS"
    )
    made.add_argument(
        "--tls-truststore", type=Path, metavar="PEM", help="the certificate of its CA"
    )
    made.add_argument(
        "--sail-python",
        type=Path,
        metavar="PATH",
        help="a Python with pysail and this sink, for R7",
    )
    made.add_argument("--kafka-libs", type=Path, metavar="DIR", help="jars of Kafka, for R6")
    made.add_argument(
        "--broker-pid", type=int, nargs="*", default=[], help="brokers here, for their CPU time"
    )
    made.add_argument(
        "--output", type=Path, metavar="DIR", help="write results.json, .md and .png there"
    )
    made.add_argument(
        "--about",
        nargs=2,
        action="append",
        default=[],
        metavar=("WHAT", "VALUE"),
        help="what else the report has to say of this run",
    )
    made.add_argument("--list", action="store_true", help="name cells and contenders, and end")
    return made


def _print_choices() -> None:
    for name, cell in CELLS.items():
        print(f"{name:12} {'*' if name in CORE else ' '} {cell}")
    print("* without --cells\n")
    for name, contender in CONTENDERS.items():
        share = "" if contender.share == 1 else f" (on {contender.share:.0%} of the rows)"
        print(f"{name:4} {contender.what}{share}")


def chosen(given: argparse.Namespace) -> dict[str, Cell]:
    """Return the cells of the command line. Raise JobError for an unknown name."""
    for option, names, known in (
        ("--cells", given.cells, CELLS),
        ("--contenders", given.contenders, CONTENDERS),
    ):
        wrong = [name for name in names if name not in known]
        if wrong:
            message = f"{option} {wrong[0]} is not one of {', '.join(known)}"
            raise running.JobError(message)
    names = CELLS if given.all else given.cells
    return {name: CELLS[name] for name in names}


def _check(given: argparse.Namespace) -> None:
    if given.bootstrap is None:
        message = "no brokers are named: give --bootstrap HOST:PORT"
        raise running.JobError(message)
    if given.rounds < 1 or given.scale <= 0 or given.warm_up < 0:
        message = (
            f"--rounds {given.rounds} and --scale {given.scale} have to be more than nothing, "
            f"--warm-up {given.warm_up} not less"
        )
        raise running.JobError(message)
    if given.before is not None and not (given.before / "spark_kafka_sink").is_dir():
        message = f"--before {given.before} is not a checkout: it has no folder spark_kafka_sink"
        raise running.JobError(message)
    if (given.tls_bootstrap is None) != (given.tls_truststore is None):
        message = "--tls-bootstrap and --tls-truststore go together: one of them is not set"
        raise running.JobError(message)
    missing = [module for module in _EXTRAS if importlib.util.find_spec(module) is None]
    if missing:
        message = f"{missing[0]} is not installed: run pip install '.[bench]' in your clone"
        raise running.JobError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the cells; return 1 if the sink itself failed."""
    given = parser().parse_args(argv)
    if given.list:
        _print_choices()
        return 0
    cells = chosen(given)
    _check(given)
    from bench.measure import measure  # noqa: PLC0415 - after the check of what is installed

    return measure(given, cells)


if __name__ == "__main__":
    sys.exit(running.run(main, _NAME))
