"""A process that runs machines of `commit`, one after another, with its commit client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from simulation.exactly_once.process import Places, Process, Waits
from simulation.scheduler import SimulationError
from spark_kafka_sink.commit.questions import Answer, Ask, Question, Reply
from spark_kafka_sink.commit.steps import Step
from spark_kafka_sink.commit_client import CommitClient
from spark_kafka_sink.config import ProducerConfig
from spark_kafka_sink.model import TopicPartition

LOG: Final = TopicPartition("__pykafka_commits", 0)


class Asker(Process):
    """A process of Spark with a commit client."""

    def __init__(self, places: Places, name: str, config: ProducerConfig) -> None:
        super().__init__(places, name)
        with places.selecting(self.selector):
            self.client = CommitClient(config, LOG.topic, clock=lambda: self._scheduler.now)
        self._machine: Any = None
        self._step: Callable[..., Step[Any]] | None = None
        self._then: Callable[[Any], None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a machine runs."""
        return self._then is not None

    def ask(
        self,
        begun: Step[Any],
        step: Callable[..., Step[Any]],
        then: Callable[[Any], None],
    ) -> None:
        """Run a machine; then: is called with its outcome."""
        assert self._then is None
        self._machine, questions = begun
        self._step, self._then = step, then
        self.client.ask(questions)
        self.wake()

    def ask_once(self, ask: Ask, then: Callable[[Reply], None]) -> None:
        """Ask one question once."""
        self.ask(Step(_Once(), (Question(ask),)), _answered_once, then)

    def run(self) -> None:
        """Go on with the machine."""
        while self._then is not None and self._step is not None:
            while self._machine.outcome is None:
                try:
                    answers = self.client.answers()
                except Waits:
                    # The simulated selector waits by this exception: no interrupt has come.
                    self.client._client._is_interrupted = False
                    raise
                if not answers:
                    message = f"{self.name}: {self._machine!r} waits for nothing"
                    raise SimulationError(message)
                self._take(answers)
            # As CommitClient.run does.
            self.client._drop_questions()
            then, self._then = self._then, None
            then(self._machine.outcome)

    def _take(self, answers: list[Answer]) -> None:
        assert self._step is not None
        for answer in answers:
            before = getattr(self._machine, "state", None)
            self._machine, questions = self._step(self._machine, answer, self._scheduler.now)
            state = getattr(self._machine, "state", None)
            self._scheduler.trace(
                self.name, "{}.{} {} -> {}", type(self._machine).__name__,
                "" if before is None else before.name, answer.reply,
                self._machine.outcome or ("" if state is None else state.name),
            )  # fmt: skip
            if self._machine.outcome is not None:
                return
            self.client.ask(questions)


@dataclass(frozen=True)
class _Once:
    """A machine that is over with any reply."""

    outcome: Reply | None = None


def _answered_once(machine: _Once, answer: Answer, _: float) -> Step[_Once]:
    return Step(replace(machine, outcome=answer.reply))
