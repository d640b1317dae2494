"""The diagrams of states in the documents are those of the tables in the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.documents.state_diagrams import DIAGRAMS, written


@pytest.mark.parametrize("document", DIAGRAMS, ids=lambda path: path.name)
def test_the_diagrams_of_a_document_are_those_of_the_tables(document: Path) -> None:
    assert document.read_text() == written(document), (
        f"{document.name} is old: see support.documents.state_diagrams"
    )
