"""A JupyterLab of the tests' own: started, waited for, ended with all its kernels."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from timers import FAR_S

if TYPE_CHECKING:
    from pathlib import Path

START_S = FAR_S
"""A Lab that does not answer by then is not going to."""

# Kernels and Lab end by themselves where a test run was killed and ends nothing.
IDLE_S = 900

NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}


class LabServer:
    """A real JupyterLab on a free port of the loopback, with settings of its own.

    Parameters
    ----------
    home
        An empty folder for its configuration, data and run files.
    root
        The folder whose notebooks it shows.
    disabled
        Names of prebuilt extensions that its pages do not load.
    language
        The language that its pages use, such as ``"de_DE"``.
    python
        The interpreter of another environment than that of the tests. Its programs are the only
        ones on the PATH.
    """

    def __init__(
        self,
        home: Path,
        root: Path,
        disabled: tuple[str, ...] = (),
        language: str = "en",
        python: Path | None = None,
    ) -> None:
        self.root = root
        self._python = python
        self.token = secrets.token_hex(16)
        self._home = home
        self._log = home / "lab.log"
        self._configure(disabled, language)
        self._process = self._start()
        self.url = ""  # until it has written the port that the system chose
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Shut its kernels down, so that their ranks go, then end it by its process."""
        for kernel in self._request("GET", "api/kernels"):
            self._request("DELETE", f"api/kernels/{kernel['id']}")
        self._process.terminate()
        try:
            self._process.wait(timeout=FAR_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start_kernel(self) -> str:
        """Start a kernel that belongs to no notebook; return its id."""
        kernel: str = self._request("POST", "api/kernels", {"name": "python3"})["id"]
        return kernel

    def shut_down_kernel(self, kernel: str) -> None:
        """End a kernel."""
        self._request("DELETE", f"api/kernels/{kernel}")

    def connect(self, path: str, kernel: str) -> str:
        """Make a kernel that runs the kernel of a notebook, as a person does; return the notebook.

        Several notebooks can have the same kernel.
        """
        session = {"path": path, "name": path, "type": "notebook", "kernel": {"id": kernel}}
        self._request("POST", "api/sessions", session)
        return path

    def shut_down_kernels_of(self, path: str) -> None:
        """End the sessions of one notebook, as a person does from "Running"."""
        for session in self._request("GET", "api/sessions"):
            if session["path"] == path:
                self._request("DELETE", f"api/sessions/{session['id']}")

    def _configure(self, disabled: tuple[str, ...], language: str) -> None:
        self._set("apputils-extension/notification", NO_NEWS)
        self._set("translation-extension/plugin", {"locale": language})
        page = self._home / "config/labconfig"
        page.mkdir()
        off = {"disabledExtensions": dict.fromkeys(disabled, True)}
        (page / "page_config.json").write_text(json.dumps(off))

    def _set(self, plugin: str, settings: dict[str, Any]) -> None:
        path = self._home / f"config/lab/user-settings/@jupyterlab/{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(settings))

    def _start(self) -> subprocess.Popen[bytes]:
        own = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "run",
            "IPYTHONDIR": "ipython",
        }
        own = {name: str(self._home / folder) for name, folder in own.items()}
        if self._python is not None:
            own["PATH"] = str(self._python.parent)
        command = [
            *(self._python or sys.executable, "-m", "jupyterlab", "--no-browser"),
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=0",
            f"--ServerApp.root_dir={self.root}",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.shutdown_no_activity_timeout={IDLE_S}",
            f"--MappingKernelManager.cull_idle_timeout={IDLE_S}",
            "--LabApp.expose_app_in_browser=True",
        ]
        if os.geteuid() == 0:
            command.append("--allow-root")
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT
            )

    def _wait_until_it_answers(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            for file in (self._home / "run").glob("jpserver-*.json"):
                try:
                    self.url = f"http://127.0.0.1:{json.loads(file.read_text())['port']}"
                    self._request("GET", "api/status")
                except (ValueError, urllib.error.URLError):  # half written, or not yet listening
                    continue
                return
            time.sleep(0.1)
        self._process.kill()
        raise RuntimeError(f"JupyterLab did not start; it said:\n{self._log.read_text()}")

    def _request(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}",
            data=None if content is None else json.dumps(content).encode(),
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=FAR_S) as response:
            body = response.read()
        return json.loads(body) if body else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
