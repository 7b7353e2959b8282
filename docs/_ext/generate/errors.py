"""The errors of the package, base classes first, with their place in the hierarchy."""

import workbench as wb


def markdown() -> str:
    """Return a drawing of the hierarchy, and the documentation of each class."""
    lines = [
        "```{eval-rst}",
        *(
            f".. autoclass:: workbench.{error.__name__}\n   :members:\n   :show-inheritance:\n"
            for error in _in_order(wb.WorkbenchError)
        ),
        ".. autoclass:: workbench.RankError\n   :members:",
        "```",
    ]
    tree = "\n".join(_tree(wb.WorkbenchError))
    return f"```text\n{tree}\n```\n\n" + "\n".join(lines)


def _in_order(error: type[Exception]) -> list[type[Exception]]:
    """Return a class and its subclasses that are public, each once."""
    found = [error]
    for below in _below(error):
        found += [one for one in _in_order(below) if one not in found]
    return found


def _below(error: type[Exception]) -> list[type[Exception]]:
    return [one for one in error.__subclasses__() if one.__name__ in wb.__all__]


def _tree(error: type[Exception], indent: str = "") -> list[str]:
    lines = [indent + error.__name__]
    for one in _below(error):
        lines += _tree(one, indent + "    ")
    return lines
