"""Finds the trainings, and runs one.

    python -m trainings.kinds horovod|ddp

starts plain processes without this package: ranks as torchrun or horovodrun would start them. They
are forked, since an import of PyTorch takes seconds. The first line of its standard input has the
environment variables of each rank, as JSON; each further line is the name of a training, and is
answered by a line with the state of each rank at the end.
"""

import ast
import importlib
import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

MODULES = {
    "ddp": ("either", "ddp", "ddp_hooks", "sharded"),
    "horovod": ("either", "horovod"),
}
"""The modules with trainings for each backend."""


def names(backend):
    """Return the names of all trainings for a backend, without importing their modules.

    Every public function of a module is a training.
    """
    return [
        f"{module}.{item.name}"
        for module in MODULES[backend]
        for item in ast.parse(Path(__file__).with_name(f"{module}.py").read_text()).body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
    ]


def run(backend, name):
    """Train, on each rank of a process group that exists.

    Returns
    -------
    dict
        The state at the end of the training, from `trainings.state.state`. If the training has
        failed, its error.
    """
    # in the function: `names` needs neither
    from trainings import backends
    from trainings.state import seed

    module, _, function = name.partition(".")
    ranks = backends.BACKENDS[backend]()
    seed(ranks.rank)
    try:
        found = getattr(importlib.import_module(f"trainings.{module}"), function)(ranks)
        return json.loads(json.dumps(found))  # a cell's value as that of a plain process
    except Exception as error:  # noqa: BLE001 - which is the same with recording and without
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def main():
    """Fork the ranks, and have them run the trainings whose names are on the standard input."""
    backend = sys.argv[1]
    # PyTorch's first optimizer imports `torch._dynamo`, in seconds
    for module in ("torch._dynamo", *(f"trainings.{module}" for module in MODULES[backend])):
        importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what trainings and libraries print
    fork = multiprocessing.get_context("fork")
    ranks = []
    for environment in json.loads(sys.stdin.readline()):
        connection, of_the_rank = fork.Pipe()
        fork.Process(target=_rank, args=(backend, environment, of_the_rank)).start()
        of_the_rank.close()
        ranks.append(connection)
    for line in sys.stdin:
        for connection in ranks:
            connection.send(line.strip())
        print(json.dumps([connection.recv() for connection in ranks]), file=answers, flush=True)
    for connection in ranks:
        connection.send(None)


def _rank(backend, environment, connection):
    """Run the trainings whose names come through a connection, until None comes."""
    os.environ.update(environment)
    while (name := connection.recv()) is not None:
        connection.send(run(backend, name))


if __name__ == "__main__":
    main()
