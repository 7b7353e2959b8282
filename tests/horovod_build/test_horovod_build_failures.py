"""Building Horovod: messages during the build, and after a failure."""

import io
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from horovod_environments import (
    check_folder,
    command_line,
    environment_python,
)

from workbench.errors import BuildFailed
from workbench.horovod_build import Request, build
from workbench.horovod_build.commands import run_logged
from workbench.horovod_build.failures import diagnose_log
from workbench.horovod_build.progress import Progress
from workbench.horovod_build.wheels import WheelCache

pytestmark = pytest.mark.timeout(300)

# Failures, each really provoked

OLD_STANDARD = """echo '#include <ATen/ATen.h>' |
g++ -std=c++14 -Wfatal-errors -fsyntax-only -I{torch}/include -x c++ -"""

# As the kernel does it when memory is short: from outside, without a word to the compiler.
KILLED = """echo '#include <ATen/ATen.h>' |
g++ -std=c++17 -fsyntax-only -I{torch}/include -x c++ - &
until kill -9 $(pgrep -P $!) 2>/dev/null; do sleep 0.05; done; wait $!"""


def test_without_a_compiler_the_package_is_named(tmp_path):
    """No g++ on the PATH: the error names the package."""
    python, _ = environment_python(tmp_path / "env")
    done = command_line(python, "--rebuild", PATH=str(tmp_path), CXX="")
    assert done.returncode == 1
    assert "no C++ compiler" in done.stderr
    assert "apt-get install g++ make" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_pytorch_it_says_how_to_install_it(tmp_path):
    """An environment without PyTorch: one message, no traceback."""
    python, _ = environment_python(tmp_path / "env", shared=False)
    done = command_line(python)
    assert done.returncode == 1
    assert "has no PyTorch" in done.stderr
    assert f"{python} -m pip install torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_network_it_says_so(monkeypatch, tmp_path):
    """No index answers: the cause is the network, and the log is named."""
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "1",
        "PIP_NO_CACHE_DIR": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(BuildFailed) as caught:
        build(Request(rebuild=True), Progress(io.StringIO()), WheelCache(tmp_path))
    assert "could not be downloaded" in caught.value.cause
    log = next((tmp_path / "logs").glob("*.log"))
    assert str(log) in str(caught.value)
    assert len(str(caught.value).splitlines()) < 15


@pytest.mark.skipif(shutil.which("g++") is None, reason="the failures are a compiler's")
@pytest.mark.parametrize(
    ("command", "cause", "fix"),
    [
        (
            OLD_STANDARD,
            "too old for the C++ standard",
            "GCC 9",
        ),
        ("echo '#include <Python.h>' | g++ -fsyntax-only -x c++ -", "Python's headers", "-dev"),
        (
            KILLED,
            "memory",
            "--jobs 1",
        ),
        ("echo 'int main(){{}}' | g++ -S -o /dev/stdout -x c++ - > /dev/full", "disk", "TMPDIR"),
        ("{python} -m nonsuch; {python} -S -m pip", "has no pip", "ensurepip"),
        ("{python} -m pip install --no-index no-such", "does not have a package", "PIP_INDEX_URL"),
        ("touch /proc/nothing/here; g++ /proc/1/nothing.cc", "unrecognized reason", "complete log"),
    ],
)  # fmt: skip
def test_diagnosis_of_a_real_log(tmp_path, command, cause, fix):
    """The output of a failed tool is diagnosed as one cause, with what to do."""
    log = tmp_path / "log"
    log.touch()
    paths = {"torch": check_folder("torch"), "python": sys.executable}
    ready = command.format(**{name: shlex.quote(str(path)) for name, path in paths.items()})
    run_logged(["bash", "-o", "pipefail", "-c", ready], log, env=os.environ | {"LC_ALL": "C"})
    found = diagnose_log(log.read_text())
    assert cause in found.cause, log.read_text()
    assert fix in found.fix
    assert 0 < len(found.lines) <= 8


def test_no_process_outlives_its_command(tmp_path):
    """What a command leaves in the background ends with it."""
    log, lines = tmp_path / "log", []
    log.touch()
    script = "sleep 300 >/dev/null 2>&1 & echo $!"
    assert run_logged(["bash", "-c", script], log, watch=lines.append) == 0
    assert not Path(f"/proc/{lines[0]}").exists()
    assert log.read_text().startswith("$ bash -c")


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def cmake_output(progress):
    """What CMake's Makefiles print: percents that step back between targets."""
    for percent in [0, 1, 4, 9, 11, 3, 24, 24, 57, 100]:
        progress.log_line(f"[{percent:3}%] Building CXX object gloo/CMakeFiles/gloo.dir/types.cc.o")
    progress.log_line("/usr/bin/c++ -O3 [100%] is no percent here")


def test_a_log_gets_a_line_each_ten_percent():
    """If output is no terminal, progress is a few lines with the elapsed time."""
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.step("compiling")
        cmake_output(progress)
    lines = stream.getvalue().splitlines()
    assert [line.split(" (")[0].strip() for line in lines] == [
        "compiling", "compiling 11 %", "compiling 24 %", "compiling 57 %", "compiling 100 %",
    ]  # fmt: skip
    assert all(line.endswith(" s)") for line in lines)


def test_a_terminal_gets_one_line_that_moves():
    """On a terminal the line is rewritten in place, and gone at the end."""
    stream = Terminal()
    with Progress(stream) as progress:
        progress.step("compiling")
        cmake_output(progress)
    assert "\n" not in stream.getvalue()
    assert "compiling 57 %" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
