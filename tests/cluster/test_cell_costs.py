"""A cell costs little in addition to its own code."""

import re
import threading

from clusters import quiet


def threads_started():
    """Return how many threads without a name of their own this process has started."""
    return int(re.search(r"\d+", threading.Thread().name)[0])  # noqa: TID251 - never started


def test_a_cell_starts_no_thread_in_the_kernel(cluster):
    """Of many cells, each begins and ends in the thread that runs it."""
    quiet(cluster, "x = 1")
    before = threads_started()
    for _ in range(10):
        quiet(cluster, "x = 1")
    assert threads_started() == before + 1  # the one that is made to read the number


def test_text_on_a_descriptor_belongs_to_its_cell(cluster):
    """Even without a line end, and just before the cell ends; the next cell has none of it."""
    source = "import os\nfor line in range(2000): os.write(1, b'%d\\n' % line)\nos.write(1, b'end')"
    for _ in range(5):
        text = quiet(cluster, source + ";").output
        assert text.count("\n") == 2001
        assert text.endswith("end\n")
        assert quiet(cluster, "x = 1").output == ""
