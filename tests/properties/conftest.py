"""Profiles of Hypothesis: a bounded one, which is the same each time, and `make fuzz`."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

_ALWAYS = {
    "deadline": None,  # of a test on a busy machine
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}
settings.register_profile(
    "bounded",
    derandomize=True,
    database=None,
    max_examples=30,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    **_ALWAYS,
)
settings.register_profile(
    "long",
    max_examples=2_000,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    **_ALWAYS,
)
settings.load_profile("bounded")  # `--hypothesis-profile` loads another one after this


@pytest.fixture(autouse=True)
def no_time_limit(request):
    """A long run may take more than the time limit of a test."""
    if settings.default.max_examples > 1_000:
        request.node.add_marker(pytest.mark.timeout(0))
