"""Patches for Horovod's own defects: what they change, and which are missing."""

import dataclasses

import pytest

from workbench.errors import BuildFailed
from workbench.horovod_build.patches import (
    PATCHES,
    apply_patches,
    digests,
    missing_patches,
    patches_for,
)

ALL = patches_for(["tensorflow"])
EDITS = [(patch, edit) for patch in ALL for edit in patch.edits]


def source_tree(folder, *, changed=None, times=1):
    """A source tree with only the text that the patches replace, and lines around it."""
    for _, edit in EDITS:
        path = folder / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        count = times if edit is changed else edit.times
        with path.open("a") as file:
            file.write(f"// before\n{edit.old * count}// after\n")
    return folder


def test_a_patch_changes_its_text_and_nothing_else(tmp_path):
    """What is replaced is replaced exactly; the lines around it stay."""
    apply_patches(source_tree(tmp_path), ALL)
    for file in {edit.file for _, edit in EDITS}:
        expected = [
            f"// before\n{edit.new * edit.times}// after\n"
            for _, edit in EDITS
            if edit.file == file
        ]
        assert (tmp_path / file).read_text() == "".join(expected)


def test_files_that_a_patch_adds_are_in_the_source(tmp_path):
    """They are compiled with the files that they are added to."""
    apply_patches(source_tree(tmp_path))
    added = [file for patch in PATCHES for file in patch.added]
    assert added
    for file in added:
        assert (tmp_path / "horovod/common" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("place", range(len(EDITS)))
@pytest.mark.parametrize("times", [0, -1])
def test_a_source_that_a_patch_does_not_match_stops_the_build(tmp_path, place, times):
    """Text that is missing, or there once too often: what is wrong where, and what to do."""
    patch, edit = EDITS[place]
    times = edit.times + 1 if times else 0
    path = source_tree(tmp_path, changed=edit, times=times) / edit.file
    with pytest.raises(BuildFailed) as caught:
        apply_patches(tmp_path, ALL)
    assert patch.name in caught.value.cause
    assert f"{edit.file} contains the text to replace {times} times" in caught.value.cause
    assert patch.upstream in caught.value.fix
    assert path.read_text().count(edit.old) == times


def test_a_source_without_the_file_stops_the_build(tmp_path):
    """A file that upstream moved is named, like a text that it changed."""
    file = PATCHES[0].edits[0].file
    (source_tree(tmp_path) / file).unlink()
    with pytest.raises(BuildFailed, match=f"{file} cannot be read"):
        apply_patches(tmp_path)


@pytest.mark.parametrize("part", ["file", "old", "new", "times"])
def test_a_changed_patch_has_another_digest(part):
    """A wheel with an earlier version of a patch does not count as having the current one."""
    first, *others = PATCHES
    edit = dataclasses.replace(first.edits[0], **{part: "another"})
    changed = dataclasses.replace(first, edits=(edit, *first.edits[1:]))
    assert digests([changed]) != digests([first])
    assert missing_patches({"cures": digests([changed, *others])}) == [first]


@pytest.mark.parametrize("name", [patch.name for patch in PATCHES if patch.added])
def test_a_changed_file_that_a_patch_adds_changes_its_digest(tmp_path, name):
    """The file's content is compiled too."""
    (patch,) = (one for one in PATCHES if one.name == name)
    copy = tmp_path / patch.added[0].name
    copy.write_text(patch.added[0].read_text() + "// more")
    changed = dataclasses.replace(patch, added=(copy, *patch.added[1:]))
    assert changed.digest() != patch.digest()


def test_what_nobody_recorded_counts_as_lacking():
    """A Horovod that something else built, or an older build-horovod, does not count as patched."""
    assert missing_patches(None) == list(PATCHES)
    assert missing_patches({"torch": "2.13.0+cpu"}) == list(PATCHES)
    assert missing_patches({"cures": digests()}) == []
    with_tensorflow = {"cures": digests(), "operations": {"tensorflow": "2.21.0"}}
    assert [one.name for one in missing_patches(with_tensorflow)] == ["tensorflow"]
