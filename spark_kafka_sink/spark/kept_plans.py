"""The exactly-once plans of streams, stored in the driver's folder.

The abort of a micro-batch needs its plan. The commit messages of tasks contain the plan, too. But
Spark may abort a micro-batch before any task has sent a commit message. The processes that plan,
commit and abort share the folder. A plan is stored until the next plan of the same owner (a
txnAppId and its target topic) replaces it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from contextlib import suppress
from pathlib import Path

from spark_kafka_sink.commit.attempts import Plan
from spark_kafka_sink.commit.names import Owner
from spark_kafka_sink.spark.session import driver_folder


def keep_plan(plan: Plan) -> None:
    """Store a plan, so that an abort without commit messages finds it.

    If it cannot be stored, the folder contains no plan of the owner, and brokers abort the open
    transactions after their timeout.
    """
    path = _path(plan.run.owner)
    if path is None:
        return
    with suppress(OSError):
        # If the disk is full, the older plan must not remain: it is of another micro-batch.
        path.unlink(missing_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(pickle.dumps(plan))
        partial.replace(path)


def kept_plan(owner: Owner) -> Plan | None:
    """Return the plan that this Spark application stored last for an owner, or None."""
    path = _path(owner)
    if path is None:
        return None
    try:
        found = pickle.loads(path.read_bytes())  # noqa: S301 - of this application's own folder
    except Exception:  # noqa: BLE001 - there is no file, or another build of the sink wrote it
        return None
    return found if isinstance(found, Plan) and found.run.owner == owner else None


def _path(owner: Owner) -> Path | None:
    folder = driver_folder()
    if folder is None:
        return None
    return folder / f".pykafka-plan-{hashlib.sha256(owner.driver_id.encode()).hexdigest()[:32]}"
