"""One run of the benchmark: a Spark session, the cells one after another, the report after each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace

import bench_about
import bench_cells
import bench_contenders
import bench_meter
import bench_ratios
import bench_registry
import bench_report
import bench_topics
import bench_turns
from pyspark.sql import SparkSession


def measure(given: argparse.Namespace, cells: Mapping[str, bench_cells.Cell]) -> int:
    """Measure cells as the command line says; 1 where this sink itself could not be measured."""
    measured: dict[str, bench_ratios.Measured] = {}
    with bench_registry.running() as registry:
        bench = bench_turns.Bench(
            spark=_new_session(),
            renew_session=_renewed,
            bootstrap=given.bootstrap,
            topics=bench_topics.Topics(given.bootstrap),
            meter=bench_meter.Meter(given.broker_pid),
            registry=registry,
            kafka_libs=given.kafka_libs,
            before=given.before,
            contenders=given.contenders,
            rounds=given.rounds,
            warm_up_s=bench_cells.FIRST_WARM_UPS * given.warm_up,
        )
        about = bench_about.of(bench.spark) | dict(given.about)
        started = time.monotonic()
        for number, (name, usual) in enumerate(cells.items(), 1):
            cell = replace(usual, rows=max(1, int(usual.rows * given.scale)))
            elapsed = time.monotonic() - started
            print(f"[{number}/{len(cells)}, {elapsed:.0f} s] {name}: {cell}", flush=True)
            run = bench_turns.CellRun(bench, cell)
            run.run()
            if cell.kind is bench_cells.Kind.WARM:
                bench.warm_up_s = given.warm_up
            measured[name] = bench_ratios.Measured(cell, run.results)
            bench_report.print_table(name, measured[name])
            if given.output is not None:
                bench_report.write(given.output, measured, about)
        bench_report.print_targets(measured, about)
        bench.spark.stop()
    ours = [one.results.get(bench_cells.OURS) for one in measured.values()]
    return int(any(result is not None and result.not_run is not None for result in ours))


def _new_session() -> SparkSession:
    spark = SparkSession.builder.appName("bench").getOrCreate()
    bench_contenders.prepare(spark)
    return spark


def _renewed(old: SparkSession) -> SparkSession:
    old.stop()
    return _new_session()
