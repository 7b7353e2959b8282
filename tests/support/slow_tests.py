"""Which tests are slow, besides those that are marked so themselves."""

SLOW_FOLDERS = (
    *("agent", "browser", "cluster", "docs", "fabric", "faults", "horovod_build", "magics"),
    *("neutrality", "notebooks", "properties", "rank", "security", "server", "testbed"),
)
"""Folders most of whose tests start ranks, VMs, kernels, servers or builds, or take long."""

SLOW_FIXTURES = ("shared_cluster", "machines", "client", "kernel", "training_run")
"""Fixtures that start ranks, VMs or kernels."""


def is_slow(item, tests):
    """Return whether a test is slow because of its fixtures, or of its folder in `tests`."""
    folders = {tests / folder for folder in SLOW_FOLDERS}
    is_in_one = not folders.isdisjoint(item.path.parents)
    return is_in_one or not set(SLOW_FIXTURES).isdisjoint(item.fixturenames)


if __name__ == "__main__":  # `make check` need not collect these, which takes long
    print(*(f"--ignore=tests/{folder}" for folder in SLOW_FOLDERS))
