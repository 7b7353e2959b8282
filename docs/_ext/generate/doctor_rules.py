"""The rules of the doctor, from the rule objects and from the cases that their checks return."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from generate.case_texts import FIELDS, case_texts
from generate.tables import prose
from workbench.doctor.rule import Rule
from workbench.doctor.rules import ACROSS, LIVE, RULES, rule_count

GROUPS = (
    ("One VM", "Over the snapshot of a VM.", RULES),
    (
        "Current use",
        "Over what a VM uses at this moment: in the sidebar and in evidence bundles.",
        LIVE,
    ),
    ("Several VMs", "Compare the snapshots of VMs that train together.", ACROSS),
)


def markdown() -> str:
    """Return a section for each group of rules, and in it one for each rule."""
    sections = []
    for title, about, rules in GROUPS:
        sections += [f"## {title}", f"{rule_count(rules)} rules. {about}"]
        for name, own in groupby(rules, key=lambda rule: rule.name):
            sections.append(f"### {name}")
            sections += [_entry(rule) for rule in own]
    return "\n\n".join(sections)


def texts(rule: Rule[Any], field: str) -> list[str]:
    """Return the texts that a field of the rule's findings can have; that of the rule first."""
    own = getattr(rule, field)
    return list(dict.fromkeys([*([own] if own else []), *case_texts(rule.check)[field]]))


def _entry(rule: Rule[Any]) -> str:
    lines = [prose(rule.subject), "", "{.rule}"]
    for field in FIELDS:
        lines += [field.capitalize(), f": {_alternatives(field, texts(rule, field))}", ""]
    return "\n".join(lines)


def _alternatives(field: str, found: Sequence[str]) -> str:
    """Return the texts of a field, as a list if there are several."""
    if field == "severity":
        return " or ".join(found)
    if len(found) == 1:
        return prose(found[0])
    return "\n  ".join(f"- {prose(text)}" for text in found)
