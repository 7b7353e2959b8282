"""Merge warnings and errors that differ between ranks only in parts that identify the rank.

A `Template` is a text with placeholders for such parts: the number of the rank, its device,
process ids, addresses, file descriptors, names of temporary files, and times. Ranks with equal
templates share a message. Numbers in any other context, such as shapes, losses, iterations
and the names of a user's files, are never replaced.

The number of a rank or of a device is replaced only if, on each rank of the group, it is the
number of this rank or of its device. The kernel knows these numbers. The other ranks are shown
separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from workbench.ranks import RankInfo, label, ranks_text

_MAX_VALUES = 64
"""Maximum number of values of a differing part that are listed."""
_MAX_PARTS = 6
"""Maximum number of differing parts before they are listed."""
_SHORT_PID = 100
"""A smaller process id may be any number; it is recognized only after a word such as pid."""

_IPV4 = r"\d{1,3}(?:\.\d{1,3}){3}"
_EQUALS = r"[\"']?\s?(?:[=:#(\[]|is|number)?\s?[\"']?"
_NOT_A_SIZE = r"(?![\w.]*\d|\s*(?:[KMGT]i?B|%|tensor|matrix|array|input|dim)|x\d)"
_OF_A_TENSOR = "".join(
    rf"(?<!{word} )"
    for word in (
        "matrix", "tensor", "lora", "input", "output", "expected", "expects", "got",
        "tensor of", "matrix of", "array of", "input of", "approximation of", "adapter of",
    )
)  # fmt: skip
_PATTERNS: dict[str, tuple[str, ...]] = {
    "time": (
        r"(?<=\b[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+",
        r"\b\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z\b|[+-]\d\d:?\d\d\b)?",
        r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\b",
        r"(?<![\d:.])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?![\d:])",
        (r"(?i:\b(?:took|elapsed(?: time)?|ran for|running for)\s*[=:]?\s*)"
        r"@\d+(?:\.\d+)?@(?=\s?(?:[umµ]?s|sec|seconds|milliseconds|min|minutes)\b)"),
    ),
    "address": (
        r"\b0x0{0,4}[1-9a-fA-F][0-9a-fA-F]{8,11}\b",
        r"(?<= at )0x[0-9a-fA-F]{5,16}(?=>)",
        rf"\[(?:{_IPV4}|[0-9a-f]*:[0-9a-f:.]+|localhost)\]:\d{{1,5}}\b",
        rf"\([\"'](?:{_IPV4}|localhost)[\"'], \d{{1,5}}\)",
        r"(?<=://)[\w.-]+:\d{1,5}\b",
        rf"(?<![\w.])(?<!version )(?<!v){_IPV4}(?::\d{{1,5}}\b)?(?![\w.]*\d)",
        r"\blocalhost:\d{1,5}\b",
        rf"(?i:\bport{_EQUALS})@\d{{2,5}}\b@",
    ),
    "file descriptor": (
        rf"(?i:\b(?:fd|file[ _]descriptor|descriptor|fileno){_EQUALS})@\d+\b@",
    ),
    "temporary name": (
        (r"(?<=/)(?:tmp[a-z0-9_]{8}|tmp\.[A-Za-z0-9]{6,10}|pymp-[a-z0-9_]{8}|torch_\d+_\d+_\d+"
        r"|workbench-[a-z]+-[a-z0-9_]{8})(?![A-Za-z0-9_])"),
        r"(?<=/)ipykernel_\d+(?=/)",
    ),
    "process id": (
        r"(?<=:)\d+(?=:\d+ \[\d+\] NCCL)",
        r"(?<=\d:)\d+(?= \[\d+\] NCCL)",
        r"(?<=/proc/)\d+(?=/)",
        rf"(?i:\b(?:pid|tid|pids|pid\(s\)|process[ _]id|thread[ _]id){_EQUALS})@\d+\b@",
        r"(?i:\bprocess )@\d{3,}\b@(?!\.\d)",
        r"(?i:\bthread )@\d{6,}\b@",
    ),
    "device": (
        r"(?<=\d \[)\d+(?=\] NCCL)",
        r"\b(?:cuda|xpu|hpu|npu|mps):@\d+\b@",
        r"type='(?:cuda|xpu|hpu|npu)', index=@\d+\b@",
        r"\bdevice_ids[\"']?\s?[=:]?\s?\[@\d+@(?=\])",
        (r"(?i:(?<![a-z])(?:gpu|device)(?:[ _](?:id|index|number|ordinal))?"
        rf"{_EQUALS})@\d+\b@{_NOT_A_SIZE}"),
    ),
    "rank": (
        (rf"(?i:(?<![a-z_-]){_OF_A_TENSOR}(?:(?:local|global|world|node)[_ ]?)?rank"
        rf"(?:_|{_EQUALS}))@\d+\b@{_NOT_A_SIZE}"),
    ),
}  # fmt: skip
"""Patterns by the kind of part. The text between two @ is replaced; without @, the whole match."""
_KINDS_OF_RANK = {"rank", "device"}
"""Parts of these kinds are replaced only if they are numbers of the rank itself."""


def _group(kind: str, number: int, pattern: str) -> str:
    name = f"(?P<{kind.replace(' ', '_')}__{number}>"
    before, marked, after = pattern.split("@") if "@" in pattern else ("", pattern, "")
    return f"{before}{name}{marked}){after}"


_ANY = "|".join(
    _group(kind, number, pattern)
    for kind, patterns in _PATTERNS.items()
    for number, pattern in enumerate(patterns)
)
_PLACEHOLDER = re.compile("\0([a-z ]+)\0")
_BEGINS_MESSAGE = re.compile(
    r"\w(?:Warning|Error|Exception)\b|Traceback|^frame #"
    r"|(?i:\b(?:warn|warning|error|exception|critical|fatal|fail|failed|failure|abort|aborted"
    r"|terminat\w+|timeout|timed out|deprecated)\b)"
    r"|^(?:\[?(?:rank)?\d+\]?:? ?)?\[?[WEF]\d{4} \d\d:\d\d"
)
"""Matches the first line of a warning or an error."""


class RankIdentity(NamedTuple):
    """The numbers and names of a rank that its messages may contain.

    Attributes
    ----------
    rank, local_rank
        The number of the rank in the ring, and among the ranks of its VM.
    pid
        The process id of the rank.
    device
        The number of the rank's GPU, or ``"CPU"``.
    vm
        The host name of the rank's VM.

    Examples
    --------
    >>> identity = RankIdentity(rank=3, local_rank=1, pid=4711, device="0")
    >>> sorted(identity.numbers("device"))
    ['0', '1', '3']
    """

    rank: int
    local_rank: int
    pid: int
    device: str = "CPU"
    vm: str = ""

    def numbers(self, kind: str) -> set[str]:
        """Return the numbers that a part of the kind ``"rank"`` or ``"device"`` may have."""
        rank_numbers = {str(self.rank), str(self.local_rank)}
        return rank_numbers | {self.device} if kind == "device" else rank_numbers


def rank_identities(infos: Iterable[RankInfo]) -> dict[int, RankIdentity]:
    """Return the identity of each rank of a cluster."""
    by_rank: dict[int, RankIdentity] = {}
    ranks_of_vm: dict[str, int] = {}
    for info in infos:
        local_rank = ranks_of_vm.get(info.vm, 0)
        ranks_of_vm[info.vm] = local_rank + 1
        by_rank[info.rank] = RankIdentity(info.rank, local_rank, info.pid, info.gpu, info.vm)
    return by_rank


class Template(NamedTuple):
    """A text with placeholders, and the parts of one rank's text that they replace.

    Attributes
    ----------
    text
        The text. A placeholder is the kind of a part between two null characters.
    values
        The replaced parts, in the order of their placeholders.
    """

    text: str
    values: tuple[str, ...]


class TemplateMaker:
    """Maker of templates from the texts of one rank.

    Parameters
    ----------
    identity
        The identity of the rank.

    Examples
    --------
    >>> TemplateMaker(RankIdentity(1, 1, 4711)).template("rank 1: 3 samples, pid 4711").values
    ('1', '4711')
    """

    def __init__(self, identity: RankIdentity) -> None:
        identity_patterns = []
        if identity.pid >= _SHORT_PID:
            identity_patterns.append(rf"(?P<process_id__own>(?<![\d.]){identity.pid}(?!\d|\.\d))")
        if len(identity.vm) > 2:
            vm = re.escape(identity.vm)
            identity_patterns.append(
                rf"(?P<address__own>(?<![\w./-]){vm}(?::\d{{1,5}}\b)?(?![\w.-]*\w))"
            )
        self._pattern = re.compile("|".join([_ANY, *identity_patterns]))

    def template(self, text: str) -> Template:
        """Return the template of a text."""
        if "\0" in text:
            return Template(text, ())
        parts: list[str] = []
        values: list[str] = []
        end = 0
        for match in self._pattern.finditer(text):
            name = match.lastgroup or ""
            begin, stop = match.span(name)
            parts += text[end:begin], f"\0{name.partition('__')[0].replace('_', ' ')}\0"
            values.append(match[name])
            end = stop
        return Template("".join([*parts, text[end:]]), tuple(values))


class MessageLines:
    """Finder of the lines of one rank's standard error that belong to a warning or an error.

    Such a message is a line such as ``UserWarning: ...`` and the indented lines that follow.
    """

    def __init__(self, identity: RankIdentity) -> None:
        self._maker = TemplateMaker(identity)
        self._in_message = False

    def template(self, line: str) -> Template | None:
        """Return the template of the next line, or None if no part of the line may differ.

        The first line of a message always has a template.
        """
        begins = bool(_BEGINS_MESSAGE.search(line))
        self._in_message = begins or (self._in_message and line.startswith((" ", "\t", "\n")))
        if not self._in_message or "\r" in line or not line.endswith("\n"):
            return None
        template = self._maker.template(line)
        return template if begins or template.values else None


def ranks_of_message(
    text: str, values: Mapping[int, Sequence[str]], identities: Mapping[int, RankIdentity]
) -> list[tuple[int, ...]]:
    r"""Return the groups of ranks that share a message, ordered by their first rank.

    Parameters
    ----------
    text
        The text of the ranks' templates.
    values
        The values of each rank's template.
    identities
        The identities of the ranks.

    Examples
    --------
    >>> ranks = {0: RankIdentity(0, 0, 41), 1: RankIdentity(1, 1, 42)}
    >>> ranks_of_message("no data on rank \0rank\0", {0: ["0"], 1: ["1"]}, ranks)
    [(0, 1)]
    >>> ranks_of_message("no data on rank \0rank\0", {0: ["7"], 1: ["1"]}, ranks)
    [(0,), (1,)]
    """
    kinds = _PLACEHOLDER.findall(text)
    signatures: dict[int, list[str | None]] = {rank: [] for rank in values}
    for number, kind in enumerate(kinds):
        ranks_by_value: dict[str, list[int]] = {}
        for rank in values:
            ranks_by_value.setdefault(values[rank][number], []).append(rank)
        for value, ranks in ranks_by_value.items():
            may_differ = kind not in _KINDS_OF_RANK or (
                len(ranks_by_value) > 1
                and all(
                    rank in identities and value in identities[rank].numbers(kind) for rank in ranks
                )
            )
            for rank in ranks:
                signatures[rank].append(None if may_differ else value)
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for rank in sorted(signatures):
        groups.setdefault(tuple(signatures[rank]), []).append(rank)
    return [tuple(ranks) for ranks in groups.values()]


class DifferingParts:
    """The differing parts of a message that some ranks share.

    Parameters
    ----------
    ranks
        The ranks that share the message.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self._names: dict[tuple[str, tuple[str, ...]], str] = {}
        """Names such as ``<rank>``, by the kind of the part and its value on each rank."""

    @property
    def full(self) -> bool:
        """Whether there are so many differing parts that they must be listed now."""
        return len(self._names) >= _MAX_PARTS

    def fill(self, text: str, values: Sequence[Sequence[str]]) -> str:
        """Return a template's text with common values, and names such as ``<rank>`` for the rest.

        Parameters
        ----------
        text
            The text of the template.
        values
            The template's values on each of the ranks.
        """
        columns = zip(*values, strict=True)
        pieces = _PLACEHOLDER.split(text)
        for number, column in enumerate(columns):
            same = len(set(column)) == 1
            kind = pieces[2 * number + 1]
            pieces[2 * number + 1] = column[0] if same else self._name(kind, column)
        return "".join(pieces)

    def lines(self) -> str:
        """Return the list of the parts as one line; empty if there are none."""
        parts = [
            f"{name} = {self._listed(kind, column)}" for (kind, column), name in self._names.items()
        ]
        return f"differing parts: {'; '.join(parts)}\n" if parts else ""

    def _name(self, kind: str, column: tuple[str, ...]) -> str:
        """Return the name of a part; parts of one kind with equal values have the same name."""
        if (kind, column) not in self._names:
            count = sum(named_kind == kind for named_kind, _ in self._names) + 1
            self._names[kind, column] = f"<{kind}>" if count == 1 else f"<{kind} {count}>"
        return self._names[kind, column]

    def _listed(self, kind: str, column: tuple[str, ...]) -> str:
        """Return a part's values on the ranks, in their order; many rank numbers as ranges."""
        if kind == "rank" and column == tuple(map(str, self.ranks)) and len(column) > 8:
            return ranks_text(self.ranks)
        left_out = len(column) - _MAX_VALUES
        more = [f"... ({left_out:,} more)"] if left_out > 0 else []
        return ", ".join([*column[:_MAX_VALUES], *more])


def shared_messages(
    texts: Mapping[int, Sequence[str]], identities: Mapping[int, RankIdentity]
) -> list[tuple[tuple[int, ...], list[str], str]]:
    r"""Merge messages of ranks that differ only in parts which identify a rank.

    Parameters
    ----------
    texts
        The message of each rank, in parts that are compared and filled together.
    identities
        The identities of the ranks. A rank without an identity shares only equal messages.

    Returns
    -------
    list of tuple
        The ranks, the parts of their message, and the line that lists the differing parts.

    Examples
    --------
    >>> ranks = {0: RankIdentity(0, 0, 41), 1: RankIdentity(1, 1, 42)}
    >>> shared_messages({0: ["no data on rank 0"], 1: ["no data on rank 1"]}, ranks)
    [((0, 1), ['no data on rank <rank>'], 'differing parts: <rank> = 0, 1\n')]
    """
    templates: dict[tuple[str, ...], dict[int, list[Template]]] = {}
    for rank, parts in sorted(texts.items()):
        if rank in identities:
            maker = TemplateMaker(identities[rank])
            rank_templates = [maker.template(part) for part in parts]
        else:
            rank_templates = [Template(part, ()) for part in parts]
        templates.setdefault(tuple(template.text for template in rank_templates), {})[rank] = (
            rank_templates
        )
    shared = []
    for template_texts, by_rank in templates.items():
        values = {
            rank: list(chain(*(template.values for template in rank_templates)))
            for rank, rank_templates in by_rank.items()
        }
        for ranks in ranks_of_message("".join(template_texts), values, identities):
            differing = DifferingParts(ranks)
            filled = [
                differing.fill(text, [by_rank[rank][number].values for rank in ranks])
                for number, text in enumerate(template_texts)
            ]
            shared.append((ranks, filled, differing.lines()))
    return sorted(shared)


def labelled(ranks: Iterable[int], line: str) -> str:
    """Return the list of differing parts, labelled with its ranks, to show it below an error."""
    return f"{label(ranks)} {line.rstrip()}" if line else ""
