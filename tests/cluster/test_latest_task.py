"""The thread that computes verdicts: one call for all requests that come meanwhile."""

import threading

from workbench.cluster.threads import LatestTask


def test_requests_during_a_call_cause_one_more_call():
    calls, begun, going_on = [], threading.Semaphore(0), threading.Semaphore(0)

    def task():
        calls.append(threading.current_thread())
        begun.release()
        going_on.acquire()

    latest = LatestTask(task)
    latest.request()
    begun.acquire()
    for _ in range(3):
        latest.request()
    assert not latest.wait(0.01)
    going_on.release(2)
    assert latest.wait()
    assert len(calls) == 2


def test_a_call_that_raises_ends_no_later_one():
    """Neither the one that was requested during it, nor one after it."""
    calls, going_on = [], threading.Semaphore(0)

    def task():
        calls.append(len(calls))
        going_on.acquire()
        raise SystemExit

    latest = LatestTask(task)
    latest.request()
    latest.request()
    going_on.release(2)
    assert latest.wait()
    before = len(calls)
    going_on.release()
    latest.request()
    assert latest.wait()
    assert len(calls) == before + 1
