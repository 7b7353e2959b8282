"""The kinds of faults. Each is a cell, in which it happens to one rank, or to what serves it."""

import random
from dataclasses import dataclass

LIMITED = """
before = resource.getrlimit(resource.RLIMIT_AS)
limit = psutil.Process().memory_info().vms + ({extra} << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
try:
    taken = []
    while True: taken.append(bytearray({size} << 20))
finally:
    taken = None
    resource.setrlimit(resource.RLIMIT_AS, before)
"""
HUGE = LIMITED.replace("while True: taken.append(bytearray({size} << 20))", "bytearray(1 << 40)")
FULL = """
with open({disk!r} + "/checkpoint.pt", "wb") as file:
    torch.save(torch.ones(1 << 18), file)
"""
WRITTEN = "open({disk!r} + '/log', 'w').write('x' * (1 << 20))"
KINDS = {
    "raise": "a rank raises an exception",
    "kill": "a rank is killed by a signal",
    "exit": "a rank exits",
    "stop": "a rank is SIGSTOPped, then SIGCONTed",
    "hang": "a rank hangs, then the cell is interrupted",
    "interrupt": "the kernel is interrupted",
    "memory": "a rank has no memory left (RLIMIT_AS)",
    "disk": "a rank's disk is full",
    "clock": "the wall clock steps",
    "agent": "the agent of a VM is killed",
    "controller": "the controller is killed",
    "link": "the link of a VM is cut, then mended",
    "ssh": "the ssh client of a VM is killed",
}
"""Each kind, in the words of the report."""
WEIGHTS = {"agent": 0.3, "controller": 0.2}
"""How often a kind is drawn, where it is not 1: these start all ranks again."""
ONLY_VMS = {"link", "ssh"}
CODES = {
    "raise": ("raise ValueError('soak')", "1 / 0", "raise KeyboardInterrupt", "sys.exit(8)",
              "def deep(): deep()\ndeep()", "leave(); 1 / 0"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "ctypes.string_at(0)", "os.abort()",
             "os.kill(os.getpid(), signal.SIGTERM)"),
    "exit": ("os._exit(7)", "os._exit(0)"),
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)",),
    "hang": ("while True: time.sleep(0.05)", "time.sleep(600)", "threading.Event().wait()",
             "while True: pass"),
    "memory": (HUGE.format(extra=64), LIMITED.format(extra=64, size=1),
               LIMITED.format(extra=256, size=16)),
    "disk": (FULL, WRITTEN),
}  # fmt: skip
"""What the rank runs; a fault takes one of them."""
USES = ("total('soak')", "train(1)", "broadcast('soak')", "total('soak', torch.ones(100_000))")
"""What the ranks do when it happens."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes
    ----------
    number
        Which one of the run; with the seed, it determines the others.
    kind
        As in `KINDS`.
    rank
        To which rank, or to the agent or ssh client of which rank's VM, it happens.
    step
        In which step of the cell.
    idle
        Whether it happens while no cell runs.
    code
        What the rank runs.
    use
        What all ranks do in each step.
    duration_s
        How long a stop, a hang, a cut or a step of the clock lasts, or when the interrupt comes.
    clock_s
        By how much the clock steps.
    """

    number: int
    kind: str
    rank: int
    step: int
    idle: bool
    code: str
    use: str
    duration_s: float
    clock_s: float = 0.0

    def __str__(self) -> str:
        when = "while idle" if self.idle else f"in step {self.step} of {self.use}"
        code = "" if self.code == "pass" else f", {' '.join(self.code.split())[-60:]}"
        return f"fault {self.number}: {self.kind}, rank {self.rank}, {when}{code}"


MAY_BE_IDLE = {"kill", "stop", "agent", "controller", "link", "ssh", "clock"}
ERRORS = {
    "raise": ("RanksFailed",),
    "kill": ("RanksFailed",),
    "exit": ("RanksFailed",),
    "stop": ("",),
    "hang": ("CellInterrupted",),
    "interrupt": ("CellInterrupted",),
    "memory": ("RanksFailed",),
    "disk": ("RanksFailed",),
    "clock": ("",),
    "agent": ("RanksFailed",),
    "controller": ("RanksFailed",),
    "link": ("",),
    "ssh": ("",),
}
"""The error of the cell, by its class; empty for none."""


def drawn(seed, number, kinds, ranks=3):
    """Return a fault of the run with this seed; the same one again for the same arguments.

    `kinds` are those that can be played.
    """
    one = random.Random(f"{seed}/{number}")
    kind = one.choices(kinds, [WEIGHTS.get(kind, 1.0) for kind in kinds])[0]
    return of_kind(kind, number, one, ranks)


def of_kind(kind, number, one, ranks=3):
    """Return a fault of a kind, whose details a `random.Random` chooses."""
    return Fault(
        number=number,
        kind=kind,
        rank=one.randrange(ranks),
        step=one.randrange(4),
        idle=kind in MAY_BE_IDLE and one.random() < 0.3,
        code=one.choice(CODES.get(kind, ("pass",))),
        use=one.choice(USES),
        duration_s=round(one.uniform(0.05, 1.5), 2),
        clock_s=one.choice((-86_400.0, -3_600.0, -1.0, 1.0, 3_600.0, 86_400.0)),
    )
