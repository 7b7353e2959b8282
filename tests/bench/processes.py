"""Measures in processes of their own, so that none profits from what another has loaded."""

import json
import subprocess
import sys
import time

from tests.bench.bounds import sized

SETTLE_S = sized(3, 0)
"""Until the processes of the measurement before have ended."""


def in_process(module, call):
    """Return what a call of a module's function returns in a new process.

    Raises
    ------
    RuntimeError
        The process failed; the text is what it wrote to stderr.
    """
    time.sleep(SETTLE_S)
    code = f"import json; from {module} import *; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module}: {call} failed: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])
