"""Where the runs of a test are, and trainings that write them."""

import pytest
from recorded_training import Training


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where this test's runs are."""
    monkeypatch.setenv("GRADIENT_WORKBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def training():
    """Start trainings, and close them after the test."""
    begun = []

    def begin(*arguments, **options):
        begun.append(Training(*arguments, **options))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


@pytest.fixture
def ended(training):
    """A run of several flushes that has ended, and its timings."""
    one = training()
    for _ in range(3):
        one.train(4)
    one.close()
    return one.timings
