"""A program: a write through the worker modules of a Databricks runtime, by the bytes of its JVM.

    python databricks_workers.py lookup|plan|task|commit FOLDER [N]

It runs with the Python of an environment that has `databricks-connect`, whose wheel has the Python
half of the runtime. Each step is a process, as in Spark. FOLDER has ``write.json`` with the schema,
the options, and whether the write is a stream. The steps leave files for the steps after them:

- `lookup` finds the data source among the installed modules, as for ``format("pykafka")``;
- `plan` runs the worker that plans, which pickles a function for tasks and a writer;
- `task N` runs that function over the Arrow batches in ``rows-N.arrow``;
- `commit` runs the worker that commits.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

_PROVIDER: Final = "pykafka"
_RETURN_TYPE: Final = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "message", "type": "binary", "nullable": True, "metadata": {}}],
    }
)
_BATCH_ID: Final = 7
# The local properties that Spark sets for the tasks of a stream.
_OF_STREAM: Final = {
    "sql.streaming.queryId": "11111111-2222-3333-4444-555555555555",
    "streaming.sql.batchId": str(_BATCH_ID),
}
# The wheel lacks this module of the runtime, which finds Python files of a workspace.
_LACKING: Final = "pyspark.databricks.wsfs.wsfs_path_finder"
# SpecialLengths.END_OF_STREAM of pyspark.serializers.
_END_OF_STREAM: Final = -4


class _FromJvm:
    """The bytes that the JVM sends to a worker."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self.text(f"{sys.version_info[0]}.{sys.version_info[1]}")
        # These five are in Databricks' Python alone, around the number of files to add to the path.
        self.text("isolated-library-prefix")
        self.text("virtualenv-root")
        self.text("/tmp/spark-files")
        self.number(0)
        self.flag(value=False)
        self.flag(value=False)
        self.text("driver")
        self.flag(value=True)
        # There are no broadcast variables.
        self.flag(value=False)
        self.number(0)

    def text(self, value: str) -> None:
        self.data(value.encode())

    def data(self, value: bytes) -> None:
        self.number(len(value))
        self._bytes.write(value)

    def number(self, value: int) -> None:
        self._bytes.write(struct.pack("!i", value))

    def long(self, value: int) -> None:
        self._bytes.write(struct.pack("!q", value))

    def flag(self, *, value: bool) -> None:
        self._bytes.write(bytes([value]))

    def options(self, given: dict[str, str]) -> None:
        self.number(len(given))
        for name, value in given.items():
            self.text(name)
            self.text(value)

    def run(self, worker: ModuleType) -> io.BytesIO:
        """Run a worker to its end; return what it sends to the JVM. Print its exception."""
        self.number(_END_OF_STREAM)
        self._bytes.seek(0)
        answer = io.BytesIO()
        try:
            worker.main(self._bytes, answer)
        except SystemExit:
            print(answer.getvalue().decode(errors="replace"), file=sys.stderr)
            raise
        answer.seek(0)
        return answer


def _worker(name: str) -> ModuleType:
    lacking = ModuleType(_LACKING)
    lacking.__dict__["register_wsfs_path_finder"] = lambda: None
    sys.modules[_LACKING] = lacking
    sys.modules[_LACKING.rpartition(".")[0]] = ModuleType("wsfs")
    return importlib.import_module(f"pyspark.sql.worker.{name}")


def _number(answer: io.BytesIO) -> int:
    (value,) = struct.unpack("!i", answer.read(4))
    return int(value)


def _data(answer: io.BytesIO) -> bytes:
    return answer.read(_number(answer))


def lookup(folder: Path) -> None:
    """Keep the pickled class of the data source that the runtime finds."""
    answer = _FromJvm().run(_worker("lookup_data_sources"))
    found = {_data(answer).decode(): _data(answer) for _ in range(_number(answer))}
    (folder / "class.pickle").write_bytes(found[_PROVIDER])


def plan(folder: Path, write: dict[str, Any]) -> None:
    """Keep the pickled function of tasks and the pickled writer."""
    sent = _FromJvm()
    sent.data((folder / "class.pickle").read_bytes())
    sent.text(_PROVIDER)
    sent.text(write["schema"])
    sent.text(_RETURN_TYPE)
    sent.options(write["options"])
    sent.flag(value=False)  # overwrite
    sent.flag(value=write["is_stream"])
    answer = sent.run(_worker("write_into_data_source"))
    (folder / "function.pickle").write_bytes(_data(answer))
    (folder / "writer.pickle").write_bytes(_data(answer))


def task(folder: Path, write: dict[str, Any], number: int) -> None:
    """Keep the commit message of a task."""
    context = object.__new__(TaskContext)
    context._stageId, context._partitionId, context._attemptNumber = 0, number, 0
    context._localProperties = dict(_OF_STREAM) if write["is_stream"] else {}
    TaskContext._taskContext = context
    function, _ = pickle.loads((folder / "function.pickle").read_bytes())
    with pa.ipc.open_stream(folder / f"rows-{number}.arrow") as rows:
        (answer,) = function(iter(rows))
    (folder / f"message-{number}.pickle").write_bytes(answer.column(0)[0].as_py())


def commit(folder: Path, write: dict[str, Any]) -> None:
    """Commit the messages of all tasks."""
    messages = [each.read_bytes() for each in sorted(folder.glob("message-*.pickle"))]
    sent = _FromJvm()
    if write["is_stream"]:
        source = pickle.loads((folder / "class.pickle").read_bytes())
        sent.data(pickle.dumps(source(write["options"])))
        sent.text(write["schema"])
        sent.flag(value=False)  # overwrite
    else:
        sent.data((folder / "writer.pickle").read_bytes())
    sent.number(len(messages))
    for message in messages:
        sent.data(message)
    if write["is_stream"]:
        sent.long(_BATCH_ID)
    sent.flag(value=False)  # abort
    name = "python_streaming_sink_runner" if write["is_stream"] else "commit_data_source_write"
    answer = sent.run(_worker(name))
    status = _number(answer)
    if status != 0:
        raise SystemExit(f"the worker answers {status}, expected 0")


def main(step: str, folder: Path, *numbers: str) -> None:
    """Run a step."""
    write = json.loads((folder / "write.json").read_text())
    if step == "lookup":
        lookup(folder)
    elif step == "plan":
        plan(folder, write)
    elif step == "task":
        task(folder, write, int(numbers[0]))
    else:
        commit(folder, write)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
