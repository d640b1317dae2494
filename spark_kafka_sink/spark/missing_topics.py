"""Topics of a topic column that do not exist, created by the task that meets them first.

Which topics there are is known only from the rows, so the driver cannot create them. Tasks that
meet the same one at once may all ask for it: one creates it, the others find it there.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_kafka_sink.admin import KafkaAdmin
from spark_kafka_sink.spark.options import SinkOptions


class MissingTopics:
    """What a task knows of its topics; it asks once for each."""

    def __init__(self, options: SinkOptions) -> None:
        self._producer = options.producer
        self._new = options.new_topic if options.topic is None else None
        self._there: set[str] = set()

    def create(self, batch: pa.RecordBatch) -> None:
        """Create the topics of an Arrow batch where createTopics asks for it.

        Raises as `KafkaAdmin.topics` does.
        """
        if self._new is None:
            return
        met = pc.unique(batch.column("topic")).drop_null().to_pylist()
        missing = [name for name in met if name not in self._there]
        if missing:
            with KafkaAdmin(self._producer) as admin:
                self._there.update(admin.topics(missing, self._new))
