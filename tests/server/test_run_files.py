"""Downloads of evidence bundles and of profiles, from a real server."""

from __future__ import annotations

import http.client
import os
import socket
from urllib.parse import quote

import pytest

from workbench.server.run_files import RunFileError, open_run_file

from .process import BASE
from .specification import validate_answer

ROUTE = "/runs/{name}/files/{file}"
RUN, ZIP, TRACE = "20260102-030405-first", "evidence-cell-3.zip", "profile-1.json.gz"
CONTENT = os.urandom(1 << 20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = folder / RUN
    run.mkdir()
    (run / ZIP).write_bytes(CONTENT)
    (run / TRACE).write_bytes(b"")
    (run / "run.json").write_text("{}")
    (folder / "secret.zip").write_text("secret")
    (run / "evidence-link.zip").symlink_to(folder / "secret.zip")
    (run / "evidence-folder.zip").mkdir()
    os.mkfifo(run / "evidence-pipe.zip")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(run / "evidence-socket.zip"))
    (folder / "linked").symlink_to(run)
    (folder / ZIP).write_text("secret")
    return folder


@pytest.fixture(scope="module")
def server(start, runs):
    return start(environment={"GRADIENT_WORKBENCH_RUNS": str(runs)})


def ask(server, headers, run=RUN, name=ZIP):
    path = f"workbench/api/runs/{quote(run, safe='')}/files/{quote(name, safe='')}"
    return server.ask(path, headers=headers)


def test_a_bundle_is_downloaded(server, right):
    """As an attachment that no page can show, with the cookie of a browser too."""
    for headers in (right, {"Cookie": server.cookies()[0]}):
        answer = ask(server, headers)
        assert (answer.status, answer.body) == (200, CONTENT)
        assert answer.headers["Content-Type"] == "application/zip"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{ZIP}"'
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"] or (
            "default-src 'none'" in answer.headers["Content-Security-Policy"]
        )


def test_an_empty_trace_is_downloaded(server, right):
    """With its own type."""
    answer = ask(server, right, name=TRACE)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Type"] == "application/gzip"


def test_nobody_gets_a_file_without_the_token(server):
    """Refused as every route of the product."""
    answer = ask(server, {})
    assert answer.status == 403
    validate_answer(ROUTE, "get", answer.status, answer.headers, answer.body)


def test_another_page_gets_no_file(server):
    """With the cookie only."""
    elsewhere = {"Cookie": server.cookies()[0], "Origin": "https://elsewhere.example"}
    answer = ask(server, elsewhere)
    assert answer.status == 404
    validate_answer(ROUTE, "get", answer.status, answer.headers, answer.body)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (RUN, "evidence-link.zip"),
        (RUN, "evidence-folder.zip"),
        (RUN, "evidence-pipe.zip"),
        (RUN, "evidence-socket.zip"),
        (RUN, "evidence-none.zip"),
        (RUN, "run.json"),
        (RUN, "../secret.zip"),
        (RUN, "evidence-/../../secret.zip"),
        (RUN, "evidence-a\0.zip"),
        (RUN, "evidence-a\nb.zip"),
        (RUN, 'evidence-".zip'),
        (RUN, "evidence-é.zip"),
        (RUN, f"evidence-{'x' * 3000}.zip"),
        ("linked", ZIP),
        ("..", ZIP),
        (".", ZIP),
        (f"../{RUN}", ZIP),
        (f"/{RUN}", ZIP),
        ("a\0", ZIP),
        ("none", ZIP),
        ("x" * 3000, ZIP),
    ],
    ids=lambda text: ascii(text)[:30],
)
def test_no_other_file_is_sent(server, right, run, name):
    """No link, no folder, nothing outside of the run, nothing that is not for users."""
    answer = ask(server, right, run, name)
    assert answer.status == 404
    validate_answer(ROUTE, "get", answer.status, answer.headers, answer.body)
    assert answer.json()["reason"].endswith(".")
    assert len(answer.body) < 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_files_of_another_user_are_not_sent(tmp_path, what):
    """Not even to root, who could read them."""
    run = tmp_path / RUN
    run.mkdir()
    (run / ZIP).write_text("mine")
    os.close(open_run_file(RUN, ZIP, tmp_path))
    os.chown(run if what == "folder" else run / ZIP, 12345, 12345)
    with pytest.raises(RunFileError, match="another user"):
        open_run_file(RUN, ZIP, tmp_path)


def test_a_cancelled_download_leaves_the_server_running(server, right, runs):
    """It closes the file, and goes on."""
    large = runs / RUN / "evidence-large.zip"
    with large.open("wb") as file:
        file.truncate(200 << 20)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    path = f"{BASE}workbench/api/runs/{RUN}/files/{large.name}"
    connection.request("GET", path, headers=right)
    assert len(connection.getresponse().read(1000)) == 1000
    connection.close()
    assert ask(server, right).status == 200
