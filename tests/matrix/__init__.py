"""The matrix: environments with other versions and other front ends, and what works in each.

`python -m tests.matrix [ROW ...]` makes one environment after another, installs the wheel of this
tree in it, runs its checks, and writes docs/proof/matrix.md from what it has seen.

- `rows.py`: the environments, and the checks of each.
- `environments.py`: makes and removes an environment.
- `checks.py`: what is run in an environment.
- `browser_checks.py`: what is seen of it in Chromium.
- `table.py`: results, and the table of them.
"""

import sys
from pathlib import Path

# For what tests/browser has, and what that has from tests/support.
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "support")]
