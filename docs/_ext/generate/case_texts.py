"""The texts of the cases that a check of the doctor returns, read from the check's source.

A text with values of the VM has placeholders here: ``{nic.name}`` is shown as ``NAME``.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from workbench.doctor.finding import SEVERITIES

FIELDS = ("severity", "why", "fix", "source")
_CALLS = ("Case", "replace")
_DEEPEST = 4
"""Functions that are followed from a check."""
_MARK = "\x00"
"""Around a placeholder."""


def case_texts(check: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the texts of each field that cases of the check set, in the order of its source."""
    found: dict[str, list[str]] = {name: [] for name in FIELDS}
    for source in _sources(check):
        for call in source.calls():
            for keyword in call.keywords:
                if keyword.arg in found:
                    found[keyword.arg] += _clean(source.values(keyword.value))
    found["severity"] = [text for text in found["severity"] if text in SEVERITIES]
    return found


def _clean(values: list[Any]) -> list[str]:
    """Return the texts among values, without those that are a placeholder only."""
    texts = [value for value in values if isinstance(value, str) and value]
    return [text.replace(_MARK, "") for text in texts if not _is_placeholder(text)]


def _is_placeholder(text: str) -> bool:
    return text.startswith(_MARK) and text.endswith(_MARK) and text.count(_MARK) == 2


def _sources(check: Callable[..., Any]) -> Iterator[_Source]:
    """Yield the check, without its wrapper, and the checks of one device that it passes on."""
    inner = inspect.unwrap(check)
    if isinstance(inner, FunctionType):
        source = _Source(inner)
        yield source
        for name in dict.fromkeys(source.names()):
            other = inner.__globals__.get(name)
            if not isinstance(other, FunctionType) or other.__module__ != inner.__module__:
                continue
            if "Case" in str(other.__annotations__):
                yield _Source(other)


@dataclass
class _Source:
    """The source of a function, whose expressions are evaluated as far as they are constant."""

    function: FunctionType
    depth: int = 0
    tree: ast.AST = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))

    def names(self) -> list[str]:
        """Return all names in the function."""
        return [node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)]

    def calls(self) -> Iterator[ast.Call]:
        """Yield the calls that make a case, in the order of the source."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _name_of(node.func) in _CALLS:
                yield node

    def values(self, node: ast.expr) -> list[Any]:
        """Return the values that an expression can have: texts, tuples, and dicts of the module."""
        match node:
            case ast.Constant(value):
                return [value]
            case ast.JoinedStr(parts):
                return _products([self.values(part) for part in parts])
            case ast.BinOp(left, _, right):
                return _products([self.values(left), self.values(right)])
            case ast.IfExp(_, one, other):
                return self.values(one) + self.values(other)
            case ast.BoolOp(_, parts):
                return [text for part in parts for text in self.values(part)]
            case ast.Tuple(elements):
                return [tuple(self.values(element) for element in elements)]
        return self._of_access(node)

    def _of_access(self, node: ast.expr) -> list[Any]:
        """Return the values of what is calculated, chosen or named."""
        match node:
            case ast.FormattedValue(inner) | ast.GeneratorExp(inner) | ast.ListComp(inner):
                return self.values(inner)
            case ast.Call():
                return self._of_call(node)
            case ast.Subscript():
                return self._of_subscript(node)
        return self._of_name(node)

    def _of_call(self, node: ast.Call) -> list[Any]:
        """Return what a function of the module returns, or a text that is formatted or joined."""
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if isinstance(node.func, ast.Attribute) and method == "format":
            names = [_placeholder(argument) for argument in node.args]
            return [text.format(*names) for text in self.values(node.func.value)]
        if isinstance(node.func, ast.Attribute) and method == "get":
            return [x for one in (node.func.value, *node.args[1:]) for x in self.values(one)]
        if method == "join" or _name_of(node.func) == "next":
            return self._of_items(node.args[0])
        called = self._global(node.func)
        if isinstance(called, FunctionType) and self.depth < _DEEPEST:
            source = _Source(called, self.depth + 1)
            returned = (one for one in ast.walk(source.tree) if isinstance(one, ast.Return))
            return [text for one in returned if one.value for text in source.values(one.value)]
        return [_placeholder(node)]

    def _of_items(self, node: ast.expr) -> list[Any]:
        """Return the values of the items that are joined: of a generator, or of ``map``."""
        mapped = [
            call
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and _name_of(call.func) == "map"
        ]
        if mapped:
            return self._of_call(ast.Call(mapped[0].args[0], [], []))
        return self.values(node)

    def _of_subscript(self, node: ast.Subscript) -> list[Any]:
        """Return an element of a tuple, or the values of a dict."""
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        found: list[Any] = []
        for value in self.values(node.value):
            if isinstance(value, dict):
                found += value.values()
            elif isinstance(value, tuple) and isinstance(index, int):
                found += _element(value, index)
        return found or [_placeholder(node)]

    def _of_name(self, node: ast.expr) -> list[Any]:
        """Return the value of a constant of the module or of a local variable."""
        constant = self._global(node)
        if isinstance(constant, str | dict | tuple):
            return [constant]
        values = self._assigned(node.id) if isinstance(node, ast.Name) else []
        known = [x for x in values if not (isinstance(x, str) and _is_placeholder(x))]
        return known or [_placeholder(node)]

    def _assigned(self, name: str) -> list[Any]:
        """Return the values that are assigned to a local variable."""
        found: list[Any] = []
        for node in ast.walk(self.tree):
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if value is None:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if _name_of(target) == name:
                    found += self.values(value)
                elif isinstance(target, ast.Tuple) and name in map(_name_of, target.elts):
                    index = [*map(_name_of, target.elts)].index(name)
                    tuples = [one for one in self.values(value) if isinstance(one, tuple)]
                    found += [element for one in tuples for element in _element(one, index)]
        return found

    def _global(self, node: ast.expr) -> Any:
        return self.function.__globals__.get(node.id) if isinstance(node, ast.Name) else None


def _products(parts: list[list[Any]]) -> list[str]:
    """Return each combination of the values of some parts, as one text."""
    texts = [[value for value in part if isinstance(value, str)] for part in parts]
    return ["".join(words) for words in itertools.product(*texts)]


def _element(values: tuple[Any, ...], index: int) -> list[Any]:
    """Return the values of an element of a tuple; `_Source.values` has a list for each."""
    value = values[index] if index < len(values) else []
    return value if isinstance(value, list) else [value]


def _name_of(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _placeholder(node: ast.AST) -> str:
    """Return a name for a value of the VM, in capitals: that of ``nic.pci_address``."""
    while isinstance(node, ast.Call | ast.Subscript):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            node = node.args[0] if node.args else node.func
    name = node.attr if isinstance(node, ast.Attribute) else _name_of(node)
    return f"{_MARK}{name.strip('_').upper() or 'VALUE'}{_MARK}"
