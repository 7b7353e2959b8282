"""The tests' cache of compiled code: nothing is compiled twice, and nothing stale is used."""

import shutil
import threading

import pytest
from compile_cache import cached_file, content_key
from timers import FAR_S, InThread

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the key has its version")


def key(folder, *texts):
    return content_key([folder], "g++", *texts)


def test_a_key_is_that_of_the_content(tmp_path):
    """The same sources elsewhere have it; another byte, name or flag has another."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source.cc").write_text("int x;")
    assert key(tmp_path / "a", "-O2") == key(tmp_path / "b", "-O2") != key(tmp_path / "b", "-O3")
    (tmp_path / "b/source.cc").write_text("int y;")
    assert key(tmp_path / "a") != key(tmp_path / "b")
    (tmp_path / "b/source.cc").write_text("int x;")
    (tmp_path / "b/source.cc").rename(tmp_path / "b/other.cc")
    assert key(tmp_path / "a") != key(tmp_path / "b")


def test_a_file_is_built_once(tmp_path):
    """A build that fails leaves nothing, and is repeated."""
    with pytest.raises(ZeroDivisionError):
        cached_file("key", lambda path: path.write_bytes(bytes(1 // 0)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    path = cached_file("key", lambda path: path.write_text("first"), tmp_path)
    assert cached_file("key", lambda path: path.write_text("second"), tmp_path) == path
    assert path.read_text() == "first"


def test_builds_at_the_same_time_give_one_complete_file(tmp_path):
    """Neither sees what the other one has written so far."""
    barrier = threading.Barrier(4)

    def build(path):
        path.write_text("begin ")
        barrier.wait(FAR_S)  # all have begun
        with path.open("a") as file:
            file.write("end")

    def text():
        return cached_file("key", build, tmp_path).read_text()

    texts = []
    threads = [InThread(lambda: texts.append(text())) for _ in range(4)]
    for thread in threads:
        thread.join(FAR_S)
    assert texts == ["begin end"] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_old_files_are_removed(tmp_path):
    """The cache does not grow with each change of a source."""
    for number in range(100):
        cached_file(str(number), lambda path: path.touch(), tmp_path)
    assert len(list(tmp_path.iterdir())) < 100
    assert (tmp_path / "99").exists()
