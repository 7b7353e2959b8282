"""The public names of the package, with the first sentence about each."""

import inspect

import workbench as wb
from generate.tables import table


def markdown() -> str:
    """Return a table of the names in `workbench.__all__` but the errors."""
    rows = [(_link(name), _sentence(name)) for name in names()]
    return table(("name", "meaning"), rows)


def names() -> list[str]:
    """Return the public names that are no errors, functions after classes."""
    found = [name for name in wb.__all__ if not name.startswith("_") and not _is_error(name)]
    return sorted(found, key=lambda name: (not name[0].isupper(), name))


def _is_error(name: str) -> bool:
    value = getattr(wb, name)
    return isinstance(value, type) and issubclass(value, Exception)


def _link(name: str) -> str:
    role = "py:class" if isinstance(getattr(wb, name), type) else "py:func"
    return f"{{{role}}}`wb.{name} <workbench.{name}>`"


def _sentence(name: str) -> str:
    text = inspect.getdoc(getattr(wb, name)) or ""
    return text.split("\n\n")[0].replace("``", "`")
