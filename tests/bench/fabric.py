"""Errors of a calibration at sizes that it has not swept, at known rates and numbers of VMs.

Links of test VMs are shaped. Bus bandwidth is compared with what TCP's headers leave of the rate;
the links count the headers of Ethernet, and no more. All ranks share this machine's cores: with
more ranks than cores, the latency of small allreduces is that of the scheduler.
"""

import os
import warnings

import numpy as np

import workbench as wb
from workbench.fabric import tcp_efficiency
from workbench.testbed import vms, why_not

RATES_GBPS = (0.25, 0.5, 1.0, 2.0)
VMS = (2, 3, 4)
MEDIAN, HIGH = 0.03, 0.10
"""What is asked of the median error and of its 95th percentile."""
LARGE_BYTES = 500_000


def measure():
    """Calibrate each fabric once, and print a row for each."""
    if (reason := why_not()) is not None:
        print(f"not measured: {reason}")
        return
    print("VMs  Gbit/s  busbw of payload  median error  largest  median from 0.5 MB  halves differ")
    every = []
    for n in VMS:
        with vms(n) as machines:
            hosts, config = machines.hosts(), machines.ssh_config
            with wb.Cluster(hosts=hosts, ssh_config=config, record=False) as cluster:
                for gbps in RATES_GBPS:
                    for name in machines.names:
                        machines.shape(name, gbps)
                    every += _row(cluster, n, gbps)
    large = [error for size, error in every if size >= LARGE_BYTES]
    for what, errors in (("all sizes", [error for _, error in every]), ("from 0.5 MB", large)):
        print(
            f"{what}: median {np.median(errors):.1%}, at most {MEDIAN:.0%} is asked; 95th "
            f"percentile {np.quantile(errors, 0.95):.1%}, at most {HIGH:.0%} is asked"
        )


def _row(cluster, n, gbps):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the row says how far the halves of the sweep differ
        fabric = cluster.calibrate()
    found = [(size, error) for size, _, error in fabric.held_out]
    errors = [error for _, error in found]
    large = [error for size, error in found if size >= LARGE_BYTES]
    share = fabric.busbw_gbps / gbps / tcp_efficiency(1500, 14)
    print(
        f"{n:3}  {gbps:6}  {share:16.1%}  {np.median(errors):12.1%}  {max(errors):7.1%}  "
        f"{np.median(large):18.1%}  {fabric.disagreement:13.1%}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return found
