"""Reports as lines of a file: what was broken off costs no other report."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from spark_kafka_sink.spark.committing import report_files
from spark_kafka_sink.spark.committing.report_files import (
    add_error_to_line,
    add_error_to_remembered,
    append_report,
    newest_report_of,
    newest_reports,
    open_to_append,
    remember,
    reports_of,
)


def append(path: Path, report: dict[str, Any]) -> None:
    with open_to_append(path) as lines:
        append_report(lines, report)


@pytest.mark.parametrize("broken", [b'{"rows": 1', b'{"text": "\xc3', b"{", b"\xff", b'"'])
def test_a_line_that_was_broken_off_is_passed_over(broken: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, {"rows": 1})
    with path.open("ab") as lines:
        lines.write(broken)
    assert newest_reports(path.read_bytes(), 2) == [{"rows": 1}]
    append(path, {"rows": 2})
    append(path, {"rows": 3})
    written = path.read_bytes()
    assert newest_reports(written, 10) == [{"rows": 1}, {"rows": 2}, {"rows": 3}]
    assert newest_reports(written, 2) == [{"rows": 2}, {"rows": 3}]
    assert newest_reports(written, 0) == []
    assert len(written.splitlines()) == 4


def of_query(query: str, batch_id: int, second: int, rows: int = 1) -> dict[str, Any]:
    """Return the fields of a report by which it is found."""
    at = f"2026-01-31T12:00:{second:02}.000+00:00"
    return {"query_id": query, "batch_id": batch_id, "committed_at": at, "rows": rows}


@pytest.fixture
def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The reports that were parsed; the driver's folder is a temporary folder."""
    monkeypatch.setattr(report_files, "driver_folder", lambda: tmp_path)
    reports: list[Any] = []
    loads = json.loads

    def recording(text: bytes) -> object:
        reports.append(loads(text))
        return reports[-1]

    monkeypatch.setattr(json, "loads", recording)
    return reports


def test_a_search_parses_only_the_newest_reports_of_its_query(parsed: list[Any]) -> None:
    for batch_id in range(20):
        remember(of_query("busy", batch_id, batch_id))
        remember(of_query("other", batch_id, batch_id))
    found = reports_of("busy", 18, "2026-01-31T12:00:17.500")
    assert found == [of_query("busy", 18, 18)]
    assert newest_report_of("other", lambda _: True) == of_query("other", 19, 19)
    assert newest_report_of("third", lambda _: True) is None
    expected = [("busy", 19), ("busy", 18), ("busy", 17), ("other", 19)]
    assert [(each["query_id"], each["batch_id"]) for each in parsed] == expected


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
@pytest.mark.usefixtures("parsed")
def test_reports_are_found_whatever_part_of_the_file_is_read_at_once(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_files, "_CHUNK_BYTES", chunk)
    assert reports_of("q", 7, "2026") == []
    reports = [of_query("q", 7, second, rows) for second, rows in ((3, 1), (4, 2), (5, 3))]
    for report in (of_query("q", 6, 1), *reports, of_query("p", 7, 6)):
        remember(report)
    with (tmp_path / ".pykafka-reports.jsonl").open("ab") as lines:
        lines.write(b'{"query_id": "q", "batch_id": 7')
    remember(of_query("p", 8, 7))
    assert reports_of("q", 7, "2026-01-31T12:00:02.000") == reports
    assert reports_of("q", 6, "2026") == [of_query("q", 6, 1)], "the first line of the file"
    assert newest_report_of("q", lambda report: report["rows"] == 2) == reports[1]


def test_a_report_goes_into_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):
        append(path, {"rows": 0})  # nothing reads it, and nothing waits
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    append(path, {"rows": 1})
    append(path, {"rows": 2})
    assert newest_reports(os.read(reader, 1000), 2) == [{"rows": 1}, {"rows": 2}]
    os.close(reader)


class CountingFile(io.BufferedRandom):
    """A file that counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, and count the bytes."""
        content = super().read(size)
        self.count += len(content)
        return content


def add_error(path: Path, write_id: str) -> int:
    """Add an error to a report, and return how many bytes of the file were read."""
    with CountingFile(io.FileIO(path, "r+")) as lines:
        add_error_to_line(lines, write_id, "boom")
        return lines.count


def append_after_hole(path: Path, size: int, *reports: dict[str, Any]) -> None:
    """Make the file larger by some bytes that use no disk, and append reports."""
    os.truncate(path, path.stat().st_size + size)
    with path.open("ab") as lines:
        lines.write(b"\n")
    for report in reports:
        append(path, report)


def test_an_error_is_added_at_the_end_of_a_large_file_without_reading_all_of_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines"
    first, failed, other = ({"write_id": f"id-{each}", "complete": False} for each in "abc")
    append(path, first)
    append_after_hole(path, 100 * 1024 * 1024, failed, other)
    size = path.stat().st_size
    assert add_error(path, "id-b") < 4 * 1024 * 1024
    with path.open("rb") as lines:
        assert json.loads(lines.readline()) == first
        lines.seek(size - 1000)
        assert newest_reports(lines.read(), 2) == [failed | {"error": "boom"}, other]
    assert path.stat().st_size == size + len(', "error": "boom"')


def test_a_report_far_before_the_end_of_a_file_gets_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    failed, other = ({"write_id": f"id-{each}", "complete": False} for each in "ab")
    append(path, failed)
    append_after_hole(path, 30_000, other)
    before = path.read_bytes()
    monkeypatch.setattr(report_files, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(report_files, "_MOST_BYTES", 20_000)
    assert add_error(path, "id-a") < 30_000
    assert path.read_bytes() == before
    monkeypatch.setattr(report_files, "_MOST_BYTES", 40_000)
    add_error(path, "id-a")
    with path.open("rb") as lines:
        assert json.loads(lines.readline()) == failed | {"error": "boom"}
        assert lines.read() == before[len(json.dumps(failed)) + 1 :]


def test_a_report_that_is_appended_while_an_error_is_added_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    failed, other = {"write_id": "a", "complete": False}, {"write_id": "b", "complete": True}
    append(path, failed)
    appending = Thread(target=append, args=(path, other))
    monkeypatch.setattr(report_files, "_LOCK_S", 60.0)
    loads = json.loads

    def start(text: bytes) -> object:
        appending.start()
        appending.join(0.2)  # without the lock, it ends here
        return loads(text)

    with pytest.MonkeyPatch.context() as patch, path.open("r+b") as lines:
        patch.setattr(json, "loads", start)
        add_error_to_line(lines, "a", "boom")
    appending.join()
    assert newest_reports(path.read_bytes(), 9) == [failed | {"error": "boom"}, other]


def test_a_report_that_is_appended_without_the_lock_costs_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    failed, other = {"write_id": "a", "complete": False}, {"write_id": "b", "complete": True}
    append(path, failed)
    monkeypatch.setattr(report_files, "_LOCK_S", 0.0)
    loads = json.loads

    def interleaved(text: bytes) -> object:
        append(path, other)
        return loads(text)

    with pytest.MonkeyPatch.context() as patch, path.open("r+b") as lines:
        patch.setattr(json, "loads", interleaved)
        add_error_to_line(lines, "a", "boom")
    assert newest_reports(path.read_bytes(), 9) == [failed, other]


def test_a_lock_of_somebody_else_costs_an_error_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    monkeypatch.setattr(report_files, "_LOCK_S", 0.0)
    append(path, {"write_id": "a", "complete": False})
    with path.open("rb") as locked, path.open("r+b") as lines:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            add_error_to_line(lines, "a", "boom")
        append(path, {"write_id": "b"})
    assert [each["write_id"] for each in newest_reports(path.read_bytes(), 9)] == ["a", "b"]
    assert b"boom" not in path.read_bytes()


def test_a_file_system_without_locks_keeps_reports_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(report_files, "driver_folder", lambda: tmp_path)
    remember({"query_id": "q", "write_id": "a", "complete": False})
    remember({"query_id": "q", "write_id": "b", "complete": True})
    add_error_to_remembered("a", "boom")
    first = newest_report_of("q", lambda report: report["write_id"] == "a")
    assert first == {"query_id": "q", "write_id": "a", "complete": False, "error": "boom"}
    assert newest_report_of("q", lambda report: report["write_id"] == "b") is not None
