"""The snapshots that the panel is tested with are those that this package makes."""

from __future__ import annotations

import pytest
from panel_snapshots import CASES, FOLDER, text_of


@pytest.mark.parametrize("name", CASES)
def test_up_to_date(name, tmp_path):
    """The snapshot that the panel's tests read equals a current snapshot of that machine."""
    written = (FOLDER / f"{name}.json").read_text()
    hint = "write the panel's snapshots again: python tests/support/panel_snapshots.py"
    assert text_of(name, tmp_path) == written, hint


def test_nothing_else_lies_there():
    """A snapshot whose machine was removed is no longer tested."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(CASES)
