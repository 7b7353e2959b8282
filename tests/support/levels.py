"""Arguments of tests that `make soak` runs and `make test` leaves out."""

from typing import Any

import pytest


def in_soak(*values: Any, **options: Any) -> Any:
    """Like `pytest.param`, for arguments that only `make soak` uses."""
    return pytest.param(*values, marks=pytest.mark.soak, **options)
