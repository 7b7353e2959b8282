"""Real servers, each for a complete file of tests."""

import json
import uuid

import pytest

from .process import TOKEN, Server


@pytest.fixture(scope="module")
def start():
    """Start servers, and stop them after the file's last test."""
    started = []

    def begin(*options, **more):
        started.append(Server(*options, **more))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def counting(start, tmp_path_factory):
    """A server whose samples are numbered; `refuse` names what its authoriser refuses."""
    refused = tmp_path_factory.mktemp("authorizer") / "refused"
    refused.write_text("")
    server = start(
        "--ServerApp.authorizer_class=server.authorizers.Refusing",
        extension="server.counting_extension",
        environment={"REFUSED": str(refused)},
    )
    server.refuse = lambda *lines: refused.write_text("\n".join(lines))
    return server


@pytest.fixture
def allowed(counting):
    """The same, with nothing refused before and after."""
    counting.refuse()
    yield counting
    counting.refuse()


@pytest.fixture
def right():
    """The headers of one who has the token."""
    return {"Authorization": f"token {TOKEN}"}


@pytest.fixture
def open_session(allowed, right):
    """Open sessions of real kernels, and end them after the test."""
    opened = []

    def ask(method, path, body):
        content = {**right, "Content-Type": "application/json"}
        return allowed.ask(path, method, json.dumps(body), content)

    def begin(path, kind="notebook"):
        about = {"path": path, "type": kind, "name": "", "kernel": {"name": "python3"}}
        answer = ask("POST", "api/sessions", about)
        assert answer.status == 201, answer
        opened.append(answer.json())
        return opened[-1]

    begin.rename = lambda one, path: ask("PATCH", f"api/sessions/{one['id']}", {"path": path})
    begin.other = lambda: f"other-{uuid.uuid4().hex[:6]}"
    yield begin
    for one in opened:
        allowed.ask(f"api/sessions/{one['id']}", "DELETE", headers=right)
