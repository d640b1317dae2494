"""The moments of a run: before each question that it puts to brokers.

A test ends the run there, as SIGKILL would, or does something else in the meantime. The questions
of plan, tasks and commit are counted, in the order in which they are put. Those that are put again,
after a pause, are not counted: how many there are depends on the brokers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import pytest

from spark_kafka_sink.commit.questions import Answer, Ask, EndTxn, Question
from spark_kafka_sink.commit_client import CommitClient

# Whether a moment is meant, by its number and the question that comes next.
When: TypeAlias = Callable[[int, Ask], bool]


# As make test-exactly-once wants it: all levels, moments and answers.
IS_ALL: Final = os.environ.get("ALL_LEVELS") == "1"
# Else the level of each mode in Spark's own processes, where a mode takes a minute at each level.
SPARK_LEVELS: Final = {"single": "level 2", "two-phase": "level 1"}


class DiedError(BaseException):
    """The process is dead: it asks nothing any more."""


class Moments:
    """The questions of all commit clients of this process, and what happens before one of them.

    asked: the questions of the last run that was watched.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Ask] = []
        self._when: When | None = None
        self._act: Callable[[], None] | None = None
        self._is_dead = False
        self._kept: list[Answer] = []
        self._ask, self._answers = CommitClient.ask, CommitClient.answers
        monkeypatch.setattr(CommitClient, "ask", self._ask_watched())
        monkeypatch.setattr(CommitClient, "answers", self._answers_watched())

    def dies(self, when: When, run: Callable[[], object]) -> bool:
        """Run until a moment; return whether it came."""

        def die() -> None:
            self._is_dead = True
            raise DiedError

        try:
            self._watch(when, die, run)
        except DiedError:
            return True
        finally:
            self._is_dead = False
        return False

    def pauses(self, when: When, act: Callable[[], None], run: Callable[[], object]) -> bool:
        """Run, and do something else at each moment that is meant; return whether one came."""
        came = False

        def note() -> None:
            nonlocal came
            came = True
            when_, act_ = self._when, self._act
            self._when = None  # what is done meanwhile has no moments
            kept, self._kept = self._kept, []
            try:
                act()
            finally:
                self._kept = kept
                self._when, self._act = when_, act_

        self._watch(when, note, run)
        return came

    def _watch(self, when: When, act: Callable[[], None], run: Callable[[], object]) -> None:
        self.asked, self._when, self._act = [], when, act
        try:
            run()
        finally:
            self._when, self._kept = None, []

    def _ask_watched(self) -> Callable[[CommitClient, Iterable[Question]], None]:
        def ask(client: CommitClient, questions: Iterable[Question]) -> None:
            for question in questions:
                if self._is_dead:
                    raise DiedError
                if self._when is not None and not question.pause_s:
                    if self._when(len(self.asked), question.ask):
                        self._reach(client)
                    self.asked.append(question.ask)
                self._ask(client, [question])

        return ask

    def _reach(self, client: CommitClient) -> None:
        """Wait for the answers to what was asked before; then act."""
        while found := self._answers(client):
            self._kept += found
        assert self._act is not None
        self._act()

    def _answers_watched(self) -> Callable[..., list[Answer]]:
        def answers(client: CommitClient, timeout_s: float = 3600.0) -> list[Answer]:
            if self._kept:
                found, self._kept = self._kept, []
                return found
            return self._answers(client, timeout_s)

        return answers


def at(number: int) -> When:
    """Return the moment with a number."""
    return lambda found, _: found == number


def before_end(nth: int, *, of: str) -> When:
    """Return the moment before the nth commit of the transactions that an id begins."""
    seen = 0

    def when(_: int, ask: Ask) -> bool:
        nonlocal seen
        if not isinstance(ask, EndTxn) or not ask.commit or not ask.transactional_id.startswith(of):
            return False
        seen += 1
        return seen == nth

    return when


def numbers(happens: Callable[[int], bool], first: int = 0, step: int = 1) -> Iterator[int]:
    """Yield the numbers of moments of a run, and at last that of a run that none broke."""
    number = first
    while happens(number):
        yield number
        number += step
    yield number
