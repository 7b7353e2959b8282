"""Three VMs for all of these tests."""

import pytest
from vm_sets import vms

from workbench.testbed import why_not


@pytest.fixture(scope="package", autouse=True)
def machines():
    """Three VMs whose own names lead to their loopback, as Debian's do."""
    if why_not() is not None:
        pytest.skip(str(why_not()))
    with vms(3, gbps=1.0, interfaces=("eth0", "ens192", "eth0")) as found:
        yield found
