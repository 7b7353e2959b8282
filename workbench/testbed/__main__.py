"""``python -m workbench.testbed 3 --gbps 1``: VMs until Ctrl-C."""

# ruff: noqa: T201  # a command line prints

from __future__ import annotations

import argparse
import signal
import sys

from workbench.errors import UsageError, VmsUnavailable
from workbench.testbed import vms


def main(arguments: list[str]) -> int:
    """Create VMs, print how to log in, and wait; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workbench.testbed",
        description="Create VMs on this machine, and remove them at Ctrl-C.",
    )
    parser.add_argument("n", type=int, help="number of VMs")
    parser.add_argument("--gbps", type=float, help="rate of each link in Gbit/s")
    options = parser.parse_args(arguments)
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.default_int_handler)
    try:
        _show(options.n, options.gbps)
    except (UsageError, VmsUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThe VMs were removed.")
    return 0


def _show(n: int, gbps: float | None) -> None:
    with vms(n, gbps) as machines:
        for name in machines.names:
            print(f"{name}  {machines.address(name)}")
        print(f"In their network, this machine is {machines.kernel_address}. To log in to one:")
        print(f"  ssh -F {machines.ssh_config} {machines.names[0]}")
        print("Press Ctrl-C to remove them.", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
