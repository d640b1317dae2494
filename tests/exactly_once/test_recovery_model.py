"""`recover` beside a job, in every order of their steps: it changes nothing for the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exactly_once.brokers import OWNER
from exactly_once.model import Result, Scenario
from exactly_once.recovery_model import RecoveryModel
from spark_kafka_sink.commit import recovery
from spark_kafka_sink.commit.log_record import LogReading
from spark_kafka_sink.commit.questions import InitProducerId
from spark_kafka_sink.commit.steps import Step, asking
from spark_kafka_sink.commit.survey import FoundOwner, decided_of

pytestmark = pytest.mark.exactly_once

_BOTH_LEVELS = pytest.mark.parametrize("level", [1, 2])
_ONE_RUN = Scenario(level=2, versions=(1,))


def check_up_to(limit: int, scenario: Scenario) -> Result:
    """Explore a scenario up to a number of states, and print how much of it was looked at."""
    result = RecoveryModel(scenario).explore(limit)
    bound = "all" if result.is_complete else f"bound {limit}"
    print(f"recover, {scenario}: {result.states} states ({bound})")
    assert result.violation is None
    return result


@_BOTH_LEVELS
def test_a_job_is_exactly_once_whenever_recover_runs(level: int) -> None:
    for scenario in (
        replace(_ONE_RUN, level=level, losses=1, timeouts=1),
        replace(_ONE_RUN, level=level, slow=True, gives_up=True, timeouts=1),
        replace(_ONE_RUN, level=level, cancels=False, silences=1),
    ):
        assert check_up_to(100_000, scenario).is_complete


@_BOTH_LEVELS
def test_a_job_that_is_decided_is_finished_by_recover_and_another_run(level: int) -> None:
    decided = Scenario(level=level, versions=(1, 2), cancels=False, stopped="decided", timeouts=1)
    check_up_to(60_000, decided)


class EndsEarly(RecoveryModel):
    """An operator who commits what is decided before the open transactions are listed."""

    def begin(self, found: FoundOwner) -> Step[recovery.Recovering]:
        """Return the operator's machine."""
        not_listed = found._replace(open_ids=None)
        level = self.scenario.level
        return recovery.begin(not_listed, level=level, deadline=1e9, more_s=1.0, ends_early=True)


@_BOTH_LEVELS
def test_a_job_is_exactly_once_also_if_recover_commits_early(level: int) -> None:
    decided = Scenario(level=level, versions=(1, 2), cancels=False, stopped="decided", timeouts=1)
    for scenario in (replace(_ONE_RUN, level=level, losses=1, timeouts=1), decided):
        found = EndsEarly(scenario).explore(60_000)
        assert found.violation is None
        assert found.is_complete


class CommitsUndecided(RecoveryModel):
    """An operator who takes a record for decided whose transaction is open."""

    def decided(self, reading: LogReading) -> LogReading:
        """Return what the operator takes for decided."""
        return replace(reading, record=reading.undecided or reading.record)


class Fences(RecoveryModel):
    """An operator who asks for the epoch of a task."""

    def begin(self, found: FoundOwner) -> Step[recovery.Recovering]:
        """Return the operator's machine."""
        step = super().begin(found)
        decided = decided_of(found.reading.record)
        ids = [OWNER.task_id(each.slot) for each in decided]
        fences = asking(step.machine, *(InitProducerId(each, 60_000) for each in ids))
        return fences if ids else step


@pytest.mark.parametrize("mutant", [CommitsUndecided, Fences])
def test_without_its_rules_the_model_finds_what_goes_wrong(mutant: type[RecoveryModel]) -> None:
    scenario = replace(_ONE_RUN, cancels=True)
    assert mutant(scenario).explore(1_000_000).violation is not None
