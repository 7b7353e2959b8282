"""Commands that run others in namespaces of their own."""

import subprocess

import pytest


def skip_unless_it_runs(command, what):
    """Skip a test if `command`, which begins with ``unshare``, cannot make the namespace."""
    try:
        subprocess.run([*command, "true"], capture_output=True, text=True, check=True, timeout=30)
    except FileNotFoundError:
        pytest.skip(f"making {what} needs `unshare` (util-linux)")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{what} cannot be made here: {error.stderr.strip()}")
