"""Keys and planted secrets: in no log, command line, run file, bundle, or environment of VMs."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from planted import AGENT_SOCKET, PLANTED

KEY_FILES = {"cluster.json", "ipcontroller-client.json", "ipcontroller-engine.json"}
"""What the keys are in, closed to others (`test_second_user`)."""
_KEY = re.compile(r"[^\s\"']{24,}")
_NAMES = ("key", "secret", "public", "known", "curve_publickey", "curve_secretkey")


def values(plain, name=""):
    """The texts under names of keys, wherever they are in JSON."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from values(value, key)
    elif isinstance(plain, list):
        for value in plain:
            yield from values(value, name)
    elif isinstance(plain, str) and _KEY.fullmatch(plain) and any(map(name.count, _NAMES)):
        yield plain


@pytest.fixture(scope="module")
def keys(planted):
    """The keys of the running cluster, as its own files have them."""
    files = [path for path in planted.folder.rglob("*.json") if path.name in KEY_FILES]
    found = {one for path in files for one in values(json.loads(path.read_text()))}
    assert len(found) >= 4
    return found


def with_secrets(texts, secrets):
    """Which secrets are in which of the named texts."""
    return {
        name: found
        for name, data in texts.items()
        if (found := [one for one in secrets if one.encode() in data])
    }


def content(planted):
    """What the cluster has written, by path, with the entries of archives; without key files."""
    found = {}
    for path in planted.folder.rglob("*"):
        if not path.is_file() or path.name in KEY_FILES:
            continue
        found[str(path)] = path.read_bytes()
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    found[f"{path}/{name}"] = archive.read(name)
    return found


def test_no_file_has_a_key_or_a_planted_secret(planted, keys):
    """Logs, run files, the registry, and bundles, of which there are two."""
    found = content(planted)
    names = [Path(name).name for name in found]
    assert sum(name.endswith(".zip") for name in names) >= 2
    assert {"run.json", "rank-0.log", "controller.log", "kernel.log"} <= set(names)
    assert with_secrets(found, [*keys, *PLANTED.values()]) == {}


def test_no_command_line_has_a_key_or_a_planted_secret(planted, keys):
    lines = {str(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in planted.processes()}
    assert with_secrets(lines, [*keys, *PLANTED.values()]) == {}


def test_no_environment_has_a_key(planted, keys):
    """Neither at the start of a process, nor later in a rank: a cell might print it."""
    environments = {
        str(pid): Path(f"/proc/{pid}/environ").read_bytes() for pid in planted.processes()
    }
    later = planted.about["environments"]
    environments |= {f"rank {rank}": json.dumps(one).encode() for rank, one in later.items()}
    assert with_secrets(environments, keys) == {}


def test_ranks_of_this_machine_have_the_environment_of_the_kernel(planted):
    """They run the same user's cells on the same machine, as the kernel does."""
    for environment in planted.about["environments"].values():
        assert PLANTED.items() <= environment.items()


def test_ranks_of_vms_have_nothing_of_the_kernel(across):
    """Neither planted secrets nor the ssh agent are forwarded; nor are they in what is written."""
    running, _ = across
    for environment in running.about["environments"].values():
        text = json.dumps(environment)
        assert not any(value in text for value in [*PLANTED.values(), AGENT_SOCKET])
        assert not PLANTED.keys() & environment.keys()
        assert "SSH_AUTH_SOCK" not in environment
    assert with_secrets(content(running), PLANTED.values()) == {}
    lines = {str(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in running.processes()}
    assert with_secrets(lines, PLANTED.values()) == {}
