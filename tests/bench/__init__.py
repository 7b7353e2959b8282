"""Measurements, each against a peer or a limit in the same run: ``make bench``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
