"""The checklist for administrators of vSphere names rules of the doctor that exist."""

import re
from pathlib import Path

from workbench.doctor.rules import ACROSS, LIVE, RULES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "vsphere-checklist.md"
NAMES = {rule.name for rules in (RULES, ACROSS, LIVE) for rule in rules}
ABOUT_VSPHERE = ("vgpu", "pvrdma", "unified_memory", "vsphere", "ats_")


def last_columns():
    """The last column of each row of the page's tables of checks."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [row.split("|")[-2] for row in rows if row.count("|") == 4]


def test_each_rule_of_the_page_exists():
    """Names in the last column are those of findings."""
    named = {name for column in last_columns() for name in re.findall(r"`(\w+)`", column)}
    assert named
    assert named <= NAMES


def test_the_page_has_every_rule_about_vsphere():
    """A rule on vGPUs, PVRDMA, unified memory, ATS or limits of vSphere is somewhere in it."""
    text = PAGE.read_text("utf-8")
    ours = {name for name in NAMES if name.startswith(ABOUT_VSPHERE)}
    assert ours
    assert not {name for name in ours if f"`{name}`" not in text}
