"""What `recover` prints about an owner."""

from __future__ import annotations

from spark_kafka_sink.commit.log_record import NOTHING, DecidedTransaction
from spark_kafka_sink.commit.names import TaskSlot, checked_owner
from spark_kafka_sink.commit.outcomes import LostTransaction
from spark_kafka_sink.commit.recovery import Fate, OpenSince, Recovered
from spark_kafka_sink.commit.recovery_lines import state_lines, time_of
from spark_kafka_sink.commit.survey import FoundOwner
from spark_kafka_sink.model import ProducerIdAndEpoch, TopicPartition


def test_any_number_may_stand_for_a_time() -> None:
    assert time_of(0) == "1970-01-01T00:00:00.000Z"
    assert time_of(10**18) == f"{10**18} ms"


def test_a_command_that_is_printed_touches_no_other_owner() -> None:
    found = FoundOwner(checked_owner("team", "my app", "t"), NOTHING, ())
    producer = ProducerIdAndEpoch(1, 0)
    decided = DecidedTransaction(TaskSlot(0, 0), producer, TopicPartition("t", 0), 5)
    recovered = Recovered(
        found,
        fates=(Fate.LOST,),
        undecided=(OpenSince("team/my%20app/t/1.0", 0, 60_000),),
        lost=(LostTransaction(decided, 3),),
    )
    said = "\n".join(state_lines(recovered, "log"))
    where = "--topic=t --txn-id-prefix=team --commit-log-topic=log"
    assert f"python -m spark_kafka_sink.recover '--abort=my app' {where}" in said
    assert f"python -m spark_kafka_sink.recover --accept-torn '--app-id=my app' {where}" in said
