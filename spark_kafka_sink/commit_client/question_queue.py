"""QuestionQueue: the questions that wait until they are sent.

A question first waits until its pause is over, and then for a slot. Each broker has its own slots.
So a broker that does not respond holds no slots of other brokers. A question whose leader is not
known does not wait for a slot, because one look-up finds the leaders of all partitions of a topic.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from spark_kafka_sink.commit.questions import Question

_MOST_AT_ONE_BROKER: Final = 64
# Each request for a marker may hold a response of 1 MiB, so their total number is limited, too. But
# each broker keeps a few slots, so that silent brokers do not hold all of them.
_MOST_MARKERS: Final = 64
_MOST_MARKERS_AT_ONE_BROKER: Final = 32
_KEPT_MARKERS: Final = 4


class Line(NamedTuple):
    """A name for the questions that wait for the same slots.

    node_id: the broker that gets their requests, or None if any broker may get them. reads_markers:
    whether they read markers. finds_leader: whether the leader of their partition is looked up.
    """

    node_id: int | None
    reads_markers: bool = False
    finds_leader: bool = False


class QuestionQueue:
    """The questions that wait for the ends of their pauses or for slots.

    The questions of a line get slots in the order in which they came. line_of: returns the line of
    a question. If the broker for a question changes, the question moves to the end of another line.
    """

    def __init__(self, line_of: Callable[[Question], Line]) -> None:
        self._line_of = line_of
        self._paused: list[tuple[float, int, Question]] = []
        self._numbers = count()
        self._lines: defaultdict[Line, deque[Question]] = defaultdict(deque)
        self._held: Counter[Line] = Counter()

    @property
    def is_empty(self) -> bool:
        """Whether no question waits."""
        return not self._paused and not any(self._lines.values())

    @property
    def resumes_at(self) -> float:
        """The time at which the next pause ends; infinity if there is none."""
        return self._paused[0][0] if self._paused else float("inf")

    def add(self, question: Question) -> None:
        """Add a question without a pause."""
        self._lines[self._line_of(question)].append(question)

    def pause(self, question: Question, until: float) -> None:
        """Add a question that is not sent before the time `until`."""
        heappush(self._paused, (until, next(self._numbers), question))

    def take(self, now: float) -> list[tuple[Line, Question]]:
        """Remove and return the questions that get a slot now, each with its line.

        Call `free` with the line when the slot is no longer needed.
        """
        while self.resumes_at <= now:
            self.add(heappop(self._paused)[2])
        taken = []
        to_check = deque(self._lines)
        while to_check:
            line = to_check.popleft()
            waiting = self._lines[line]
            while waiting:
                current = self._line_of(waiting[0])
                if current != line:
                    self._lines[current].append(waiting.popleft())
                    to_check.append(current)
                elif self._has_slot(line):
                    self._held[line] += 1
                    taken.append((line, waiting.popleft()))
                else:
                    break
        return taken

    def free(self, line: Line) -> None:
        """Return a slot of a line."""
        self._held[line] -= 1

    def clear(self) -> None:
        """Remove all questions, and return all slots."""
        self._paused.clear()
        self._lines.clear()
        self._held.clear()

    def _has_slot(self, line: Line) -> bool:
        if line.finds_leader:
            return True
        if not line.reads_markers:
            return self._held[line] < _MOST_AT_ONE_BROKER
        markers = sum(held for each, held in self._held.items() if each.reads_markers)
        most = _MOST_MARKERS_AT_ONE_BROKER if markers < _MOST_MARKERS else _KEPT_MARKERS
        return self._held[line] < most
