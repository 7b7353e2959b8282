"""An export to an MLflow server that fails is one clear error."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest
from recorded import recorded
from timers import InThread

from workbench.errors import UsageError

pytest.importorskip("mlflow.tracking")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """MLflow tries once, and may write files."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def server():
    """An HTTP server that answers every request with a status and a text."""

    class Answer(BaseHTTPRequestHandler):
        status, text = 500, b""

        def do_GET(self):
            self.send_response(self.status)
            self.send_header("Content-Length", str(len(self.text)))
            self.end_headers()
            self.wfile.write(self.text)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        thread = InThread(running.serve_forever)
        yield Answer, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def refused(uri, **options):
    """The error of an export, which is one of ours and has no other's traceback."""
    with pytest.raises(UsageError) as caught:
        recorded(2).to_mlflow(tracking_uri=uri, **options)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return str(caught.value)


def test_a_database_without_its_driver(tmp_path):
    """The small package of MLflow has no databases: the error says what to install."""
    if find_spec("sqlalchemy") is not None:
        pytest.skip("the complete package of MLflow is installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert refused(uri) == (
        f"Cannot export to MLflow at {uri}: mlflow-skinny has no databases. Install mlflow, or "
        "name a server."
    )


def test_the_default_is_a_database(tmp_path, monkeypatch):
    """Without a tracking URI the error names the one that MLflow uses."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none/mlflow.db")
    assert f"at sqlite:///{tmp_path}/none/mlflow.db: " in refused(None)


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "nonsuch://here", "databricks"])
def test_a_server_that_cannot_be_used(uri):
    """It says which, why, and what to do."""
    text = refused(uri)
    assert text.startswith(f"Cannot export to MLflow at {uri}: ")
    assert "Check the tracking URI" in text


@pytest.mark.parametrize(
    ("status", "text"), [(500, b"broken"), (403, b"no"), (200, b"<html>a proxy</html>"), (404, b"")]
)
def test_a_server_that_refuses(server, status, text):
    """Also one that is no MLflow server."""
    answer, uri = server
    answer.status, answer.text = status, text
    assert f"Cannot export to MLflow at {uri}: " in refused(uri)


def test_a_run_that_does_not_exist(tmp_path):
    """Its id is in the error."""
    assert "0123abcd" in refused((tmp_path / "runs").as_uri(), run_id="0123abcd")


def test_a_folder_that_cannot_be_made():
    """An error of the file system."""
    assert "Cannot export to MLflow at file:///proc/mlflow: " in refused("file:///proc/mlflow")


@pytest.mark.parametrize(
    ("secret", "shown"), [("somebody:secret@", "<removed>@"), ("secret@", "<removed>@")]
)
def test_a_password_is_not_shown(secret, shown):
    """Of an address with one, or with a token, in our text and in MLflow's."""
    text = refused(f"http://{secret}127.0.0.1:9")
    assert "secret" not in text
    assert f"http://{shown}127.0.0.1:9" in text
