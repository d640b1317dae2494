"""Tables of a document that are made by a script, and sentences around them that are not.

A table stands between ``<!-- name -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

_PLACE: Final = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def with_tables(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Give a document's text with its tables made anew; raises KeyError for one that none makes."""
    return _PLACE.sub(lambda at: f"<!-- {at[1]} -->\n\n{tables[at[1]]()}\n<!-- end -->", text)
