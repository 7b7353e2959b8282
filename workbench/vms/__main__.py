"""``python -m workbench.vms 3 --gbps 1``: VMs until Ctrl-C."""

# ruff: noqa: T201  # a command line prints

from __future__ import annotations

import argparse
import signal
import sys

from workbench.errors import UsageError, VmsUnavailable
from workbench.vms import vms


def main(arguments: list[str]) -> int:
    """Make VMs, say how to get in, and wait; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workbench.vms",
        description="Make VMs on this machine, and take them down at Ctrl-C.",
    )
    parser.add_argument("n", type=int, help="how many VMs")
    parser.add_argument("--gbps", type=float, help="rate of each one's link in Gbit/s")
    asked = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        _show(asked.n, asked.gbps)
    except (UsageError, VmsUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThey are gone.")
    return 0


def _show(n: int, gbps: float | None) -> None:
    with vms(n, gbps) as machines:
        for name in machines.names:
            print(f"{name}  {machines.address(name)}")
        print(f"This machine is {machines.kernel_address} to them. To get into one:")
        print(f"  ssh -F {machines.ssh_config} {machines.names[0]}")
        print("Ctrl-C takes them down.", flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
