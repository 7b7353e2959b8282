"""Reads evidence bundles."""

import json
import zipfile

from timers import FAR_S, eventually

WRITE_WITH_THE_ERROR = (
    f"from workbench.cluster.evidence import recorder\nrecorder._FIRST_S = {FAR_S}"
)
"""A cell that makes errors wait for their bundle, also on a busy machine where it takes longer."""


class BundleFile:
    """An evidence bundle on disk."""

    def __init__(self, path):
        self.path = path
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            self.parts = {name: archive.read(name).decode() for name in archive.namelist()}

    def __getitem__(self, name):
        return self.parts[name]

    def json(self, name):
        return json.loads(self.parts[name])

    @property
    def manifest(self):
        return self.json("manifest.json")

    @property
    def missing(self):
        return self.manifest["missing"]

    @property
    def text(self):
        """All that is readable in it."""
        return "\n".join(self.parts.values())


def completed(path):
    """The bundle once its VMs have answered."""

    def is_complete():
        if not path.exists():  # under load, a cell ends before the first version is written
            return False
        missing = BundleFile(path).missing.values()
        return not any("still being" in why for why in missing)

    assert eventually(is_complete)
    return BundleFile(path)
