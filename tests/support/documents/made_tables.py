"""Tables of a document that a script generates, between sentences written by hand.

A table is between ``<!-- name -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_PLACE: Final = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return a document's text with its tables generated again.

    Raise KeyError for a table that no function generates.
    """
    return _PLACE.sub(lambda at: f"<!-- {at[1]} -->\n\n{tables[at[1]]()}\n<!-- end -->", text)
