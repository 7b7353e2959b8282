"""What compilers have made, kept in the user's cache by the content of its sources."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from workbench.horovod_build.wheels import cache_folder

FOLDER = cache_folder().with_name("test-builds")
_BUILDING = "building-"
_MAX_FILES = 80
"""Files that were used longest ago are removed when there are more."""
_ABANDONED_S = 3600
"""After this time the folder of a build is that of a process that was killed."""


def content_key(folders, compiler, *texts):
    """Return a hash of all files below some folders, of a compiler's version and of texts.

    Wherever the folders are, the key is the same.
    """
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    digest = hashlib.sha256()
    for text in (compiler, version.stdout, *texts):
        _update(digest, text.encode())
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            _update(digest, str(path.relative_to(folder)).encode())
            _update(digest, path.read_bytes())
    return digest.hexdigest()[:32]


def _update(digest, data):
    digest.update(f"{len(data)}:".encode())
    digest.update(data)


def cached_file(key, build, folder=FOLDER):
    """Return the path of the file for a key; if there is none, `build` writes it to a path.

    Processes that need it at the same time each build it, and all get the same file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / key
    if path.exists():
        os.utime(path)
        return path
    with tempfile.TemporaryDirectory(dir=folder, prefix=_BUILDING) as work:
        new = Path(work) / "file"
        build(new)
        new.replace(path)
    _remove_old(folder)
    return path


def _remove_old(folder):
    files = [path for path in folder.iterdir() if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime)[:-_MAX_FILES]:
        path.unlink(missing_ok=True)
    for path in folder.glob(f"{_BUILDING}*"):
        with contextlib.suppress(FileNotFoundError):  # the build has ended meanwhile
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
