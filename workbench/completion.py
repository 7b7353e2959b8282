"""Completion of magics and of rank names, in notebooks and in terminals.

Names of the ranks are those that earlier ``%%distributed`` cells have assigned. Attributes of their
objects are asked of rank 0, only while no cell runs, and without running code of the user there.
"""

from __future__ import annotations

import argparse
import re
import symtable
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion

from workbench.cluster.start_options import START_OPTIONS
from workbench.errors import WorkbenchError
from workbench.safefiles import read_file

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

_LINE = re.compile(r"(?:^|=)\s*(?P<sign>%%?)(?P<name>\w+)\s(?P<words>.*)$")
_CELL = re.compile(r"\s*%%distributed\b[^\n]*\n")
_ATTRIBUTE = re.compile(r"(?<![\w.\])}\"'])(?P<path>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\.(?P<word>\w*)$")
_WORD = re.compile(r"(?<![\w.])\w*$")
_OWN = ("cluster", "distributed", "push", "pull", "timings", "resources", "doctor", "explain",
        "fabric")  # fmt: skip
_INITIAL = frozenset({"hvd", "dist", "rank", "local_rank", "world_size", "device"})
_OF_RUNS = {
    "timings": ("open", "compare", "replay", "waterfall", "ranks", "collectives"),
    "fabric": ("whatif",),
    "explain": ("",),
}
"""Magics that accept names of runs, and after which word; empty for the first word."""
_VALUES = {option.flag: option.values for option in START_OPTIONS}
_LARGEST_FILE = 1 << 20
_MAX_RUNS = 50


class MagicCompleter:
    """Completes the options, verbs, hosts and runs of the magics, and names of the ranks."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._names: set[str] = set()
        self._cluster = ""

    def ran(self, result: ExecutionResult) -> None:
        """Note the names that a cell for the ranks assigns; called after each cell."""
        from workbench.cluster import registry

        current = registry.current()
        name = "" if current is None else current.name
        if name != self._cluster:
            self._cluster = name
            self._names.clear()
        cell = str(result.info.raw_cell if result.info else "")
        if _CELL.match(cell):
            self._names |= assigned(self._shell, _CELL.sub("", cell, count=1))

    def matches(self, context: CompletionContext) -> SimpleMatcherResult:
        """Return what completes the word at the cursor."""
        before = context.line_with_cursor[: context.cursor_position]
        magic = _LINE.search(before)
        if magic and magic["name"] in _OWN:
            word = re.split(r"[\s,]", magic["words"])[-1]
            found = self._words(magic["name"], magic["sign"] == "%%", magic["words"])
            return _result(found, word, "param", suppress=True)
        in_cell = context.cursor_line and _CELL.match(context.full_text)
        if in_cell and (attribute := _ATTRIBUTE.search(before)):
            names = _attributes(attribute["path"], attribute["word"])
            return _result(names, attribute["word"], "instance", suppress=True)
        word_match = _WORD.search(before)
        if in_cell and word_match:
            above = "\n".join(context.full_text.split("\n")[1 : context.cursor_line])
            known = self._names | _INITIAL | assigned(self._shell, above)
            return _result(sorted(known), word_match[0], "instance", suppress=False)
        return _result((), "", "", suppress=False)

    def _words(self, name: str, in_cell: bool, text: str) -> Iterator[str]:
        """Yield what the last word of a magic's line can be."""
        find = self._shell.find_cell_magic if in_cell else self._shell.find_line_magic
        actions = getattr(find(name), "parser", argparse.ArgumentParser())._actions
        flags = {name for one in actions if one.nargs == 0 for name in one.option_strings}
        *words, last = text.split(" ")
        words = [word for word in words if word and word not in flags]
        if last.startswith("-"):
            for action in actions:
                yield from action.option_strings
        elif words and words[-1].startswith("-"):
            yield from ssh_hosts(words) if words[-1] == "--hosts" else _VALUES.get(words[-1], ())
        elif not words:
            for action in actions:
                yield from () if action.option_strings else action.choices or ()
        if not last.startswith("-") and (words[:1] or [""])[0] in _OF_RUNS.get(name, ()):
            yield from _runs()


def assigned(shell: InteractiveShell, source: str) -> set[str]:
    """Return the names that a cell assigns at its top level; none if it is not valid Python."""
    try:
        table = symtable.symtable(shell.transform_cell(source), "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}


def ssh_hosts(words: list[str]) -> Iterator[str]:
    """Yield the hosts of the ssh configuration that a line names, or of the user's."""
    path = Path("~/.ssh/config")
    if "--ssh-config" in words[:-1]:
        path = Path(words[words.index("--ssh-config") + 1])
    try:
        text = read_file(path.expanduser(), _LARGEST_FILE).decode(errors="replace")
    except (OSError, RuntimeError):
        return
    for line in text.splitlines():
        key, *names = line.replace("=", " ").split() or [""]
        if key.lower() == "host":
            yield from (name for name in names if not set(name) & set("*?!"))


def _runs() -> list[str]:
    from workbench.timings.run import list_runs

    try:
        return [run.name for run in list_runs()[:_MAX_RUNS]]
    except WorkbenchError:
        return []


def _attributes(path: str, word: str) -> list[str]:
    """Return attributes of an object of the ranks; private ones only after an underscore."""
    from workbench.cluster import registry

    cluster = registry.current()
    names = () if cluster is None else cluster.attribute_names(path)
    return [name for name in names if word.startswith("_") or not name.startswith("_")]


def _result(found: Iterable[str], word: str, kind: str, *, suppress: bool) -> SimpleMatcherResult:
    completions = [SimpleCompletion(text=one, type=kind) for one in found if one.startswith(word)]
    return {
        "completions": completions,
        "matched_fragment": word,
        "suppress": suppress and bool(completions),
        "do_not_suppress": set(),
    }


def register(shell: InteractiveShell) -> None:
    """Add the completer to a shell, in place of an earlier one."""
    own = shell.Completer.custom_matchers
    for earlier in [one for one in own if isinstance(one, _Matcher)]:
        own.remove(earlier)
        shell.events.unregister("post_run_cell", earlier.completer.ran)
    matcher = _Matcher(MagicCompleter(shell))
    own.append(matcher)
    shell.events.register("post_run_cell", matcher.completer.ran)


class _Matcher:
    """What IPython calls, with the attributes by which it knows the second version of matchers."""

    matcher_api_version = 2
    matcher_priority = 100.0
    matcher_identifier = "workbench"

    def __init__(self, completer: MagicCompleter) -> None:
        self.completer = completer
        self.__qualname__ = "workbench.completion"

    def __call__(self, context: CompletionContext) -> SimpleMatcherResult:
        return self.completer.matches(context)
