"""A profile of ranks on several VMs, whose traces travel over ssh."""

import traces
from clusters import quiet, training
from timers import FAR_S

import workbench as wb


def test_the_ranks_of_all_vms_are_in_one_trace(machines):
    """With their operators, on one clock; the profiled iterations are marked."""
    with wb.Cluster(hosts="vm1:1,vm2:1", ssh_config=machines.ssh_config) as cluster:
        ended = cluster.profile(iterations=8)
        quiet(cluster, training(40))
        profile = ended.result(FAR_S)
        summary = cluster.timings.summary(40)
    assert profile.ranks == (0, 1)
    assert profile.notes == ()
    assert profile.uncertainty_us < 5000
    assert summary.profiled >= 9
    trace = traces.read(profile.path)
    traces.check_format(trace)
    names = {
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"
    }
    assert names == {"rank 0 on vm1", "rank 1 on vm2"}
    assert {event["pid"] for event in traces.slices(trace, "cpu_op")} == {0, 1}
