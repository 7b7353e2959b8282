"""The front end's generated files are those that the declarations in Python make."""

import pytest
from generated_typescript import FILES, FOLDER


@pytest.mark.parametrize("name", FILES)
def test_up_to_date(name):
    """A change of a declaration also changes the front end."""
    hint = "write them again: python tests/support/generated_typescript.py"
    assert (FOLDER / name).read_text() == FILES[name](), hint


def test_nothing_else_lies_there():
    """A file that nothing makes is edited by hand."""
    assert {file.name for file in FOLDER.iterdir()} == set(FILES)
