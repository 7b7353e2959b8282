"""The code with which a user of stock ipyparallel makes a ring of its engines."""

import contextlib


def form_ring(client, names, interface, address="127.0.0.1"):
    """Import torch and Horovod on all engines, init, and wait for a collective.

    `names` are their hosts, `address` is where they find this machine.
    """
    from workbench.cluster.backends import horovod as ring

    view = client[:]
    view.block = True
    view.execute("import torch")
    view.execute("import horovod.torch as hvd")
    with contextlib.closing(ring.Rendezvous(ring.assign(names), address)) as rendezvous:
        rendezvous.start()
        view.execute("import os")
        pending = []
        for rank, engine in enumerate(client.ids):
            environment = rendezvous.environment(rank, interface)
            source = f"os.environ.update({environment!r})\nhvd.init()"
            pending.append(client[engine].execute(source, block=False))
        for answer in pending:
            answer.get()
    view.execute("hvd.allreduce(torch.ones(1))")
