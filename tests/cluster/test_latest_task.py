"""The thread that computes verdicts: one call for all requests that come meanwhile."""

import os
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


def test_a_fork_does_not_wait():
    """It has no thread that could end the call."""
    going_on = threading.Semaphore(0)
    latest = LatestTask(going_on.acquire)
    latest.request()
    child = os.fork()
    if not child:
        os._exit(0 if latest.wait(600) else 1)
    assert os.waitpid(child, 0)[1] == 0
    going_on.release()
    assert latest.wait()
