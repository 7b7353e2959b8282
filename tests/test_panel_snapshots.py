"""The snapshots that the panel is tested with are those that this package makes."""

from __future__ import annotations

import pytest
from panel_snapshots import CASES, FOLDER, text_of


@pytest.mark.parametrize("name", CASES)
def test_up_to_date(name, tmp_path):
    """What the panel's tests read is what a snapshot of that machine is now."""
    written = (FOLDER / f"{name}.json").read_text()
    hint = "write the panel's snapshots again: python tests/panel_snapshots.py"
    assert text_of(name, tmp_path) == written, hint


def test_nothing_else_lies_there():
    """A snapshot whose machine is gone is not tested against any more."""
    assert {file.stem for file in FOLDER.glob("*.json")} == set(CASES)
