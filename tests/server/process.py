"""A real Jupyter server in a process of its own, behind a base URL, and ways to knock at it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import websocket

TOKEN = "right-" + "0123456789abcdef" * 2
BASE = "/user/alice/"
OTHERS = (
    "workbench",
    "jupyterlab",
    "jupyter_lsp",
    "ipyparallel",
    "notebook_shim",
    "jupyter_resource_usage",
    "jupyterlab_nvdashboard",
)
"""Extensions that an installation may switch on; they are left out."""
TESTS = Path(__file__).parent.parent


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self):
        assert self.headers["Content-Type"].startswith("application/json")
        return json.loads(self.body)


class Server:
    """Starts on a free port with `options` of ``jupyter server``, and is killed by `stop`."""

    def __init__(self, *options, extension="workbench", environment=None, python=sys.executable):
        self.folder = Path(tempfile.mkdtemp(prefix="wb-server-"))
        self.log = self.folder / "log"
        homes = {
            f"JUPYTER_{name}_DIR": str(self.folder / name.lower())
            for name in ("CONFIG", "DATA", "RUNTIME")
        }
        paths = [
            str(TESTS),
            str(TESTS / "support"),
            str(TESTS.parent),
            os.environ.get("PYTHONPATH", ""),
        ]
        arguments = [
            "--no-browser",
            "--allow-root",
            "--ServerApp.port=0",
            f"--ServerApp.base_url={BASE}",
            f"--IdentityProvider.token={TOKEN}",
            f"--ServerApp.root_dir={self.folder}",
            f"--ServerApp.jpserver_extensions={dict.fromkeys(OTHERS, False) | {extension: True}}",
            *options,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "jupyter_server", *arguments],
                env={**os.environ, **homes, "PYTHONPATH": os.pathsep.join(paths)}
                | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.port = self._port()

    def _port(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for file in (self.folder / "runtime").glob("jpserver-*.json"):
                try:
                    port = json.loads(file.read_text())["port"]
                except ValueError:  # half written
                    continue
                if self._answers(port):
                    return port
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        log = self.log.read_text()
        self.stop()
        raise AssertionError(f"the server did not start:\n{log}")

    @staticmethod
    def _answers(port):
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
        except OSError:
            return False
        return True

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its kernels notice, and end
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, path, method="GET", body=None, headers=None, base=BASE):
        """Ask for a path below the base URL; a redirect is not followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, base + path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def open(self, headers=None, query="", base=BASE, timeout=20):
        """Open the WebSocket; refused, it raises `websocket.WebSocketBadStatusException`."""
        return websocket.create_connection(
            f"ws://127.0.0.1:{self.port}{base}workbench/api/live{query}",
            header=[f"{name}: {value}" for name, value in (headers or {}).items()],
            suppress_origin=True,
            skip_utf8_validation=True,  # in Python it takes longer than all the rest
            timeout=timeout,
        )

    def cookies(self):
        """Log in as a browser does: the cookies, and the token against forged requests."""
        form = self.ask("login")
        xsrf = re.match(r"_xsrf=([^;]+)", form.headers["Set-Cookie"])[1]
        answer = self.ask(
            "login",
            "POST",
            f"password={TOKEN}&_xsrf={xsrf.replace('|', '%7C')}",
            {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"_xsrf={xsrf}"},
        )
        assert answer.status == 302, answer
        names = [line.split(";")[0] for line in answer.headers.get_all("Set-Cookie")]
        return "; ".join([f"_xsrf={xsrf}", *(one for one in names if "_xsrf" not in one)]), xsrf
