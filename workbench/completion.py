"""Completion of magics and of rank names, in notebooks and in terminals.

Names of the ranks are names that earlier ``%%distributed`` cells have assigned. Rank 0 returns the
attributes of objects, only while no cell runs, and without running code of the user.
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
_MAGICS = ("cluster", "distributed", "push", "pull", "timings", "resources", "doctor", "explain",
        "fabric")  # fmt: skip
_INITIAL = frozenset({"hvd", "dist", "rank", "local_rank", "world_size", "device"})
"""Names that the namespace of each rank contains initially."""
_VERBS_WITH_RUN = {
    "timings": ("open", "compare", "replay", "waterfall", "ranks", "collectives"),
    "fabric": ("whatif",),
    "explain": ("",),
}
"""The verbs of each magic that accept the name of a run; ``""`` for a magic without verbs."""
_VALUES = {option.flag: option.values for option in START_OPTIONS}
_MAX_FILE_BYTES = 1 << 20
_MAX_RUNS = 50


class MagicCompleter:
    """Completer of the options, verbs, hosts and runs of magics, and of names of the ranks."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._names: set[str] = set()
        self._cluster = ""

    def record_names(self, result: ExecutionResult) -> None:
        """Record the names that a cell for the ranks assigns; called after each cell."""
        from workbench.cluster import registry

        current = registry.current()
        name = "" if current is None else current.name
        if name != self._cluster:
            self._cluster = name
            self._names.clear()
        cell = str(result.info.raw_cell if result.info else "")
        if _CELL.match(cell):
            self._names |= assigned_names(self._shell, _CELL.sub("", cell, count=1))

    def matches(self, context: CompletionContext) -> SimpleMatcherResult:
        """Return the completions of the word at the cursor."""
        line_start = context.line_with_cursor[: context.cursor_position]
        magic = _LINE.search(line_start)
        if magic and magic["name"] in _MAGICS:
            word = re.split(r"[\s,]", magic["words"])[-1]
            candidates = self._words(magic["name"], magic["sign"] == "%%", magic["words"])
            return _result(candidates, word, "param", suppress=True)
        in_cell = context.cursor_line and _CELL.match(context.full_text)
        if in_cell and (attribute := _ATTRIBUTE.search(line_start)):
            names = _attributes(attribute["path"], attribute["word"])
            return _result(names, attribute["word"], "instance", suppress=True)
        word_match = _WORD.search(line_start)
        if in_cell and word_match:
            lines_above = "\n".join(context.full_text.split("\n")[1 : context.cursor_line])
            visible_names = self._names | _INITIAL | assigned_names(self._shell, lines_above)
            return _result(sorted(visible_names), word_match[0], "instance", suppress=False)
        return _result((), "", "", suppress=False)

    def _words(self, name: str, is_cell_magic: bool, text: str) -> Iterator[str]:
        """Yield the candidates for the last word of a magic's line."""
        find = self._shell.find_cell_magic if is_cell_magic else self._shell.find_line_magic
        actions = getattr(find(name), "parser", argparse.ArgumentParser())._actions
        flags = {name for action in actions if action.nargs == 0 for name in action.option_strings}
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
        verb = words[0] if words else ""
        if not last.startswith("-") and verb in _VERBS_WITH_RUN.get(name, ()):
            yield from _runs()


def assigned_names(shell: InteractiveShell, source: str) -> set[str]:
    r"""Return the names that a cell assigns at its top level; empty if it is not valid Python.

    Examples
    --------
    >>> from IPython.core.inputtransformer2 import TransformerManager
    >>> sorted(assigned_names(TransformerManager(), "import torch\nfolder = %pwd"))
    ['folder', 'torch']
    """
    try:
        table = symtable.symtable(shell.transform_cell(source), "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }


def ssh_hosts(words: list[str]) -> Iterator[str]:
    """Yield the hosts of the ssh configuration that a line names, by default the user's."""
    path = Path("~/.ssh/config")
    if "--ssh-config" in words[:-1]:
        path = Path(words[words.index("--ssh-config") + 1])
    try:
        text = read_file(path.expanduser(), _MAX_FILE_BYTES).decode(errors="replace")
    except (OSError, RuntimeError):
        return
    for line in text.splitlines():
        key, *names = line.replace("=", " ").split() or [""]
        if key.lower() == "host":
            yield from (name for name in names if not set(name) & set("*?!"))


def _runs() -> list[str]:
    """Return the names of the newest stored runs; empty if they cannot be read."""
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


def _result(
    candidates: Iterable[str], word: str, kind: str, *, suppress: bool
) -> SimpleMatcherResult:
    """Return the candidates that start with the word; `suppress` hides IPython's own."""
    completions = [
        SimpleCompletion(text=candidate, type=kind)
        for candidate in candidates
        if candidate.startswith(word)
    ]
    return {
        "completions": completions,
        "matched_fragment": word,
        "suppress": suppress and bool(completions),
        "do_not_suppress": set(),
    }


def register(shell: InteractiveShell) -> None:
    """Add a completer to a shell, in place of an earlier completer."""
    matchers = shell.Completer.custom_matchers
    for earlier in [candidate for candidate in matchers if isinstance(candidate, _Matcher)]:
        matchers.remove(earlier)
        shell.events.unregister("post_run_cell", earlier.completer.record_names)
    matcher = _Matcher(MagicCompleter(shell))
    matchers.append(matcher)
    shell.events.register("post_run_cell", matcher.completer.record_names)


class _Matcher:
    """A matcher for IPython. Its attributes declare the second version of the matcher API."""

    matcher_api_version = 2
    matcher_priority = 100.0
    matcher_identifier = "workbench"

    def __init__(self, completer: MagicCompleter) -> None:
        self.completer = completer
        self.__qualname__ = "workbench.completion"

    def __call__(self, context: CompletionContext) -> SimpleMatcherResult:
        return self.completer.matches(context)
