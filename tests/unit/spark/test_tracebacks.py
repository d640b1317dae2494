"""What Spark shows of a failed write: frames of user code, and the sentence of the sink at the end.

Functions of the sink are stood for by functions whose module is named as the sink's are.
"""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructType
from pyspark.util import handle_worker_exception

from spark_kafka_sink.errors import ConfigException, KafkaException
from spark_kafka_sink.spark.options import sink_options
from spark_kafka_sink.spark.planning.datasource import KafkaDataSource
from spark_kafka_sink.spark.tracebacks import short_tracebacks
from spark_kafka_sink.spark.writer import KafkaArrowWriter

SENTENCE = "spark_kafka_sink.errors.KafkaException: a broker said no; ask another one"


def function_of(module: str, code: str) -> Callable[..., Any]:
    """Return the function `run` of a module with this code."""
    space: dict[str, Any] = {"__name__": module, "KafkaException": KafkaException}
    exec(compile(code, f"/{module.replace('.', '/')}.py", "exec"), space)
    function: Callable[..., Any] = space["run"]
    return function


def of_sink(code: str) -> Callable[..., Any]:
    return function_of("spark_kafka_sink.client.any", code)


users_partitioner = function_of("users", "def run():\n    {}['no such key']")
of_library = function_of("pyarrow.lib", "def run(call):\n    call()")
raises = of_sink("def run():\n    raise KafkaException('a broker said no; ask another one')")
calls = of_sink("def run(call):\n    call()")
write = short_tracebacks(of_sink("def run(self, task):\n    task()"))
wraps = of_sink(
    "def run(call):\n"
    "    try:\n"
    "        call()\n"
    "    except Exception as error:\n"
    "        raise KafkaException('a broker said no; ask another one') from error"
)


def shown(task: Callable[[], None], *, full: bool = False) -> str:
    """Return the traceback of a task as a worker of Spark passes it on."""
    try:
        write(SimpleNamespace(full_traceback=full), task)
    except BaseException:  # noqa: BLE001 - as a worker of Spark does
        return traceback.format_exc()
    return ""


def files(text: str) -> list[str]:
    """Return the files of the frames of a traceback, without this one."""
    lines = [line.split('"')[1] for line in text.splitlines() if line.startswith('  File "')]
    return [name for name in lines if name != __file__]


def test_a_failure_of_the_sink_is_its_sentence_alone() -> None:
    text = shown(raises)
    assert files(text) == []
    assert text.splitlines()[-1] == SENTENCE
    assert text.count("a broker said no") == 1


def test_a_failure_of_user_code_shows_its_frames() -> None:
    text = shown(partial(calls, users_partitioner))
    assert files(text) == ["/users.py"]
    assert text.splitlines()[-1] == "KeyError: 'no such key'"


def test_frames_below_those_of_user_code_stay_and_others_of_libraries_do_not() -> None:
    by_user = function_of("users", "def run(call, other):\n    call(other)")
    below = partial(by_user, of_library, partial(calls, users_partitioner))
    text = shown(partial(of_library, below))
    assert files(text) == ["/users.py", "/pyarrow/lib.py", "/users.py"]


def test_a_cause_in_user_code_stays_above_the_sentence() -> None:
    text = shown(partial(wraps, partial(calls, users_partitioner)))
    assert files(text) == ["/users.py"]
    assert "KeyError: 'no such key'\n\nThe above exception was the direct cause" in text
    assert text.splitlines()[-1] == SENTENCE


def test_a_cause_elsewhere_is_left_out_because_the_sentence_names_it() -> None:
    broken = function_of("socket", "def run():\n    raise OSError('no route')")
    text = shown(partial(wraps, partial(wraps, broken)))
    assert files(text) == []
    assert "no route" not in text
    assert text.count("a broker said no") == 1


def test_the_causes_of_an_exception_of_user_code_are_its_own() -> None:
    code = "def run():\n    raise ValueError('mine') from KeyError('never raised')"
    text = shown(partial(wraps, function_of("users", code)))
    assert "never raised" in text
    assert text.index("never raised") < text.index("mine") < text.index(SENTENCE)


def test_a_bug_shows_all_frames() -> None:
    text = shown(of_sink("def run():\n    [][0]"))
    assert files(text)[-1] == "/spark_kafka_sink/client/any.py"


def test_full_traceback_shows_all_frames() -> None:
    for task in (raises, partial(calls, users_partitioner)):
        assert "/spark_kafka_sink/client/any.py" in files(shown(task, full=True))


def test_causes_that_go_round_in_a_circle_end() -> None:
    first, second = KafkaException("a broker said no; ask another one"), OSError()
    first.__cause__, second.__cause__ = second, first

    def task() -> None:
        raise first

    assert shown(task).splitlines()[-1] == SENTENCE


@dataclass(frozen=True)
class Frozen(Exception):
    """An exception whose attributes cannot be set."""

    number: int


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Frozen(3)])
def test_what_user_code_raises_is_raised(error: BaseException) -> None:
    def raise_it() -> None:
        raise error

    users = function_of("users", "def run(call):\n    call()")
    with pytest.raises(type(error)) as raised:
        write(SimpleNamespace(full_traceback=False), partial(calls, partial(users, raise_it)))
    assert raised.value is error


@pytest.mark.parametrize("name", ["fullTraceback", "fulltraceback"])
def test_the_option_is_read_where_the_write_is_planned_and_in_tasks(name: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    for text, on in (("true", True), (" TRUE ", True), ("false", False)):
        assert KafkaDataSource(given | {name: text}).full_traceback is on
        assert KafkaArrowWriter(sink_options(given | {name: text})).full_traceback is on
    assert KafkaDataSource(given).full_traceback is False
    with pytest.raises(ConfigException, match="option fullTraceback is 'x': expected true or fal"):
        sink_options(given | {name: "x"})


def test_a_refusal_of_the_planning_has_no_frames_of_the_sink() -> None:
    def planned(**more: str) -> str:
        source = KafkaDataSource({"kafka.bootstrap.servers": "h:1", "topc": "t"} | more)
        try:
            source.writer(StructType().add("value", StringType()), overwrite=False)
        except ConfigException:
            return traceback.format_exc()
        return ""

    text = planned()
    assert files(text) == []
    sentence = "spark_kafka_sink.errors.ConfigException: option topc is not an option of the pykaf"
    assert text.splitlines()[-1].startswith(sentence)
    assert len(files(planned(fullTraceback="true"))) > 3


@pytest.mark.parametrize("full", ["true", "false"])
def test_spark_shows_no_options_even_if_it_is_set_to_show_variables(
    full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_TRACEBACK_WITH_LOCALS", "1")  # as Spark 4.3 does
    worker = io.BytesIO()

    def plan_as_spark_does() -> None:
        options = {"kafka.bootstrap.servers": "h:1", "kafka.sasl.password": "hunter2", "topc": "t"}
        source = KafkaDataSource(options | {"fullTraceback": full})
        source.writer(StructType().add("value", StringType()), overwrite=False)

    try:
        plan_as_spark_does()
    except ConfigException as error:
        handle_worker_exception(error, worker)
    text = worker.getvalue().decode(errors="replace")
    assert "option topc is not an option of the pykaf" in text
    assert "in plan_as_spark_does" in text
    assert "hunter2" not in text
