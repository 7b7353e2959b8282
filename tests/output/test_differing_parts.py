"""Messages of ranks are one message only if what differs identifies a rank or its process."""

import pytest

from workbench.output.cell_output import CellOutput
from workbench.output.differing_parts import RankIdentity, shared_messages
from workbench.output.sink import TextSink

KNOWN = {
    0: RankIdentity(0, 0, 41_001, "0", "vm-one"),
    1: RankIdentity(1, 1, 41_002, "1", "vm-one"),
    2: RankIdentity(2, 0, 51_003, "0", "vm-two"),
}

SAME = {
    "rank": ("rank 0: bad batch", "rank 1: bad batch"),
    "rank in brackets": ("[rank0]: bad batch", "[rank1]: bad batch"),
    "rank with equals sign": ("no data (rank=0)", "no data (rank=1)"),
    "rank with colon": ("Rank: 0 has no data", "Rank: 1 has no data"),
    "rank in a dict": ("{'rank': 0, 'size': 4}", "{'rank': 1, 'size': 4}"),
    "rank and a common rank": ("rank 0 waits for rank 7", "rank 1 waits for rank 7"),
    "rank of the environment": ("RANK='0' is odd", "RANK='1' is odd"),
    "local rank": ("local_rank 0 has no GPU", "local_rank 1 has no GPU"),
    "process id": ("worker (pid 41010) was killed", "worker (pid 41020) was killed"),
    "process ids of workers": (
        "DataLoader worker (pid(s) 77, 78) exited",
        "DataLoader worker (pid(s) 99, 78) exited",
    ),
    "own process id in a path": ("no file /run/train-41001.log", "no file /run/train-41002.log"),
    "terminated process": ("Terminating process 23409", "Terminating process 23401"),
    "address of an object": (
        "<Net object at 0x7fe424a0dd20> is no tensor",
        "<Net object at 0x7fe424a0dce0> is no tensor",
    ),
    "address in a C++ stack": (
        "frame #3: gloo::wait() + 0x29d (0x7fe424a0dd20 in libtorch.so)",
        "frame #3: gloo::wait() + 0x29d (0x7fc424a0dd20 in libtorch.so)",
    ),
    "host and port": ("cannot connect to 10.0.0.2:41234", "cannot connect to 10.0.0.3:39201"),
    "peer of Gloo": (
        "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:43210",
        "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:43998",
    ),
    "port": ("port 29501 is in use", "port 29502 is in use"),
    "socket address": ("refused: ('127.0.0.1', 45001)", "refused: ('127.0.0.1', 45002)"),
    "URL": ("PUT http://host-a:8001/kv failed", "PUT http://host-b:8002/kv failed"),
    "file descriptor": ("Bad file descriptor: fd=71", "Bad file descriptor: fd=84"),
    "file descriptor in words": ("file descriptor 9 is closed", "file descriptor 12 is closed"),
    "temporary file": ("no file /tmp/tmpab12cd_9/x.pt", "no file /tmp/tmpq0_2zzk1/x.pt"),
    "shared memory": ("unlink /dev/shm/torch_41001_77_0", "unlink /dev/shm/torch_41002_98_0"),
    "path of the cell": ("/tmp/ipykernel_1/5.py:2: careful", "/tmp/ipykernel_2/5.py:2: careful"),
    "date and time": ("2026-11-27 02:03:15,419 ERROR x", "2026-11-27 02:03:16,803 ERROR x"),
    "time of PyTorch's log": (
        "W1127 02:03:15.419000 41001 torch/x.py:165] slow",
        "W1127 02:03:15.803000 41002 torch/x.py:165] slow",
    ),
    "duration": ("ALLREDUCE ran for 600023 milliseconds", "ALLREDUCE ran for 600045 milliseconds"),
    "device": ("no kernel on cuda:0", "no kernel on cuda:1"),
    "device ids": ("got device_ids [0], output_device 0", "got device_ids [1], output_device 1"),
    "GPU": ("GPU 0 has no memory left", "GPU 1 has no memory left"),
    "NCCL": (
        "vm-one:41001:41050 [0] NCCL WARN Duplicate GPU",
        "vm-one:41002:41051 [1] NCCL WARN Duplicate GPU",
    ),
    "several parts": (
        "[rank0]: <Net at 0x7fe424a0dd20> on cuda:0, pid 41001",
        "[rank1]: <Net at 0x7fe424a0dd50> on cuda:1, pid 41002",
    ),
}  # fmt: skip

DIFFERENT = {
    "text": ("no data", "no model"),
    "class": ("KeyError: 1", "IndexError: 1"),
    "shape": ("mat1 has shape (0, 4)", "mat1 has shape (1, 4)"),
    "size": ("size 0 is too small", "size 1 is too small"),
    "size of a batch": ("expected batch of 4, got 0", "expected batch of 4, got 1"),
    "loss": ("loss is 0.25", "loss is 1.25"),
    "loss that equals the rank": ("loss 0", "loss 1"),
    "iteration": ("failed in iteration 0", "failed in iteration 1"),
    "epoch and step": ("epoch 3, step 0: overflow", "epoch 3, step 1: overflow"),
    "line": ('File "train.py", line 10', 'File "train.py", line 11'),
    "line after a colon": ("train.py:10: careful", "train.py:11: careful"),
    "key": ("KeyError: 'price'", "KeyError: 'name'"),
    "key that is a number": ("KeyError: 0", "KeyError: 1"),
    "shard": ("cannot read /data/shard-0.tar", "cannot read /data/shard-1.tar"),
    "shard in a temporary folder": ("cannot read /tmp/data_00.bin", "cannot read /tmp/data_01.bin"),
    "shard with letters": ("cannot read /tmp/part0000.npy", "cannot read /tmp/part0001.npy"),
    "name of a folder": ("no /tmp/training/x", "no /tmp/testdata/x"),
    "version": ("needs version 1.2.3.4", "needs version 1.2.3.5"),
    "error code": ("failed with 0x80070005", "failed with 0x80070006"),
    "errno": ("[Errno 2] open", "[Errno 13] open"),
    "exit status": ("exited with code 0", "exited with code 1"),
    "worker of a loader": (
        "Caught KeyError in DataLoader worker process 0",
        "Caught KeyError in DataLoader worker process 1",
    ),
    "rank of a tensor": ("expected a tensor of rank 0", "expected a tensor of rank 1"),
    "rank before a tensor": ("got a rank 0 tensor", "got a rank 1 tensor"),
    "rank of LoRA": ("lora_rank=0 is invalid", "lora_rank=1 is invalid"),
    "another rank": ("waits for rank 1", "waits for rank 0"),
    "another device": ("expected cuda:1", "expected cuda:0"),
    "own and another rank": ("rank 0 waits for rank 1", "rank 1 waits for rank 0"),
    "number of GPUs": ("found 0 GPUs", "found 1 GPUs"),
    "memory": ("GPU 0 GiB are free", "GPU 1 GiB are free"),
    "process id and a key": ("pid 41001: 'a'", "pid 41002: 'b'"),
    "layer": ("layers.0.weight is missing", "layers.1.weight is missing"),
    "dimension": ("dim 0 must be even", "dim 1 must be even"),
    "argument": ("argument 0 is None", "argument 1 is None"),
    "sample": ("sample 41001 of 90000 is damaged", "sample 41003 of 90000 is damaged"),
    "dtype": ("expected float32", "expected float64"),
    "checksum": ("checksum 0x12345678 is wrong", "checksum 0x12345679 is wrong"),
    "URL of data": ("no https://example.org/a.bin", "no https://example.org/b.bin"),
    "seed": ("seed=0", "seed=1"),
    "world size": ("world_size=1", "world_size=2"),
    "learning rate": ("lr=0.1 diverges", "lr=0.2 diverges"),
}  # fmt: skip


def messages(*texts):
    """The messages of ranks 0, 1, ..., as they are shown."""
    return shared_messages({rank: [text] for rank, text in enumerate(texts)}, KNOWN)


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_one_message_of_both_ranks_lists_what_differs(pair):
    """A reader can restore both messages."""
    ((ranks, (text,), differing),) = messages(*pair)
    assert ranks == (0, 1)
    listed = dict(
        part.split(" = ")
        for part in differing.removeprefix("differing parts: ").strip().split("; ")
    )
    for number, message in enumerate(pair):
        restored = text
        for name, values in listed.items():
            column = values.split(", ")
            size = len(column) // 2
            restored = restored.replace(name, ", ".join(column[number * size :][:size]))
        assert restored == message


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_different_messages_stay_two(pair):
    """Numbers that matter are never replaced, even if each equals its rank."""
    assert [(ranks, texts, differing) for ranks, texts, differing in messages(*pair)] == [
        ((0,), [pair[0]], ""),
        ((1,), [pair[1]], ""),
    ]


def test_a_message_about_one_rank_is_not_split():
    """On rank 0 its own number is in the text, which all ranks print."""
    text = "rank 0 did not answer"
    assert messages(text, text, text) == [((0, 1, 2), [text], "")]


def test_the_device_is_the_number_on_its_vm():
    """Ranks 0 and 2 have GPU 0 of different VMs."""
    ((ranks, texts, differing),) = messages("cuda:0 is lost", "cuda:1 is lost", "cuda:0 is lost")
    assert (ranks, texts) == ((0, 1, 2), ["cuda:<device> is lost"])
    assert differing == "differing parts: <device> = 0, 1, 0\n"


def test_without_identities_only_equal_messages_are_one():
    """What a rank's own number is must be known."""
    shared = shared_messages({0: ["rank 0"], 1: ["rank 1"]}, {})
    assert [ranks for ranks, *_ in shared] == [(0,), (1,)]


def output(*texts, ranks=2):
    """The text of a cell on whose ranks standard error is as given."""
    written = CellOutput(tuple(range(ranks)), TextSink(), KNOWN)
    for rank, text in enumerate(texts):
        written.add(rank, [("stderr", 0, text)], 0.0)
    written.finish()
    return written.text


def test_a_warning_is_shown_once_with_its_line_and_what_differs_below():
    """The list comes after the line of source."""
    text = "/tmp/ipykernel_{}/5.py:2: UserWarning: [rank {}] careful\n  warnings.warn(message)\n"
    assert output(text.format(41_001, 0), text.format(41_002, 1)) == (
        "[ranks 0-1] /tmp/<temporary name>/5.py:2: UserWarning: [rank <rank>] careful\n"
        "[ranks 0-1]   warnings.warn(message)\n"
        "[ranks 0-1] differing parts: <temporary name> = ipykernel_41001, ipykernel_41002; "
        "<rank> = 0, 1\n"
    )


def test_a_line_of_one_rank_is_unchanged():
    """It needs no list."""
    assert output("ERROR: rank 0, pid 41001\n", "") == "[rank 0] ERROR: rank 0, pid 41001\n"


def test_other_lines_of_standard_error_are_unchanged():
    """Only warnings and errors are merged by what differs."""
    assert output("rank 0 reads\n", "rank 1 reads\n") == (
        "[rank 0] rank 0 reads\n[rank 1] rank 1 reads\n"
    )


def test_the_order_of_the_lines_is_kept():
    """Lines between two warnings stay between them."""
    texts = [f"WARNING rank {rank}: a\nown {rank}\nWARNING rank {rank}: b\n" for rank in range(2)]
    assert output(*texts) == (
        "[ranks 0-1] WARNING rank <rank>: a\n"
        "[ranks 0-1] differing parts: <rank> = 0, 1\n"
        "[rank 0] own 0\n"
        "[rank 1] own 1\n"
        "[ranks 0-1] WARNING rank <rank>: b\n"
        "[ranks 0-1] differing parts: <rank> = 0, 1\n"
    )


def test_lines_that_only_look_alike_are_all_shown():
    """A rank whose message is about another rank has a line of its own."""
    texts = ["ERROR: rank 0 is late\n", "ERROR: rank 1 is late\n", "ERROR: rank 1 is late\n"]
    assert output(*texts, ranks=3) == (
        "[rank 0] ERROR: rank 0 is late\n[ranks 1-2] ERROR: rank 1 is late\n"
    )
