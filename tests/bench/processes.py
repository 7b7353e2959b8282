"""Measures in processes of their own, so that none profits from what another has loaded."""

import json
import subprocess
import sys
import time

SETTLE_S = 3
"""Until the processes of the measurement before have ended."""


def in_process(module, call):
    """Return what a call of a module's function returns in a new process."""
    time.sleep(SETTLE_S)
    code = f"import json; from {module} import *; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])
