"""Runs benchmarks one after another, and reports missed bounds and failures at the end."""

import traceback

from tests.bench.bounds import NotMeasured


def run(benches, judge=True):
    """Run all benchmarks, and return the exit status: 1 if one failed or missed a bound.

    Parameters
    ----------
    benches
        The title and the ``measure`` function of each benchmark, by its name.
    judge
        Whether missed bounds count.
    """
    missed, failed = [], []
    for name, (title, measure) in benches.items():
        print(f"\n{name}: {title}", flush=True)
        try:
            for bound in measure():
                is_missed = judge and not bound.is_met
                print(f"{bound}{': MISSED' if is_missed else ''}", flush=True)
                if is_missed:
                    missed.append((name, bound))
        except NotMeasured as reason:
            print(f"not measured: {reason}", flush=True)
        except Exception as error:  # noqa: BLE001 - the other benchmarks still run
            traceback.print_exc()
            failed.append((name, repr(error)))
    _report("Missed bounds", missed)
    _report("Failed benchmarks", failed)
    return 1 if missed or failed else 0


def _report(title, rows):
    if rows:
        width = max(len(name) for name, _ in rows)
        print(f"\n{title}:")
        for name, text in rows:
            print(f"  {name:{width}}  {text}")
