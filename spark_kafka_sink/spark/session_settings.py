"""``change_setting``: changes a setting of a session, where that can be done.

`register` changes some; a session, classic or of Spark Connect, may lack one or keep it fixed, and
the sink works without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def change_setting(
    spark: SparkSession, name: str, change: Callable[[str | None], str | None]
) -> str | None:
    """Set what `change` makes of the value that a setting has; None from it leaves that.

    Gives why it could not be done, None where it was.
    """
    try:
        wanted = change(spark.conf.get(name))
        if wanted is not None:
            spark.conf.set(name, wanted)
    except Exception as error:  # noqa: BLE001 - whatever it is, the sink works without
        return (str(error) or type(error).__name__).splitlines()[0]
    return None
