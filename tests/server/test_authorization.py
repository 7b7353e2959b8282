"""Who may use a server: every route, behind a base URL, with each kind of credentials."""

from __future__ import annotations

import json

import pytest
import websocket

from .process import BASE, TOKEN

ELSEWHERE = {"Origin": "https://elsewhere.example"}
ROUTES = ("GET snapshot", "GET findings", "POST read", "GET clusters", "WS live")
OPEN = {
    "GET snapshot": 200,
    "GET findings": 200,
    "POST read": 400,
    "GET clusters": 200,
    "WS live": 101,
}
"""The answer of each route to a user who may ask; an empty file has nothing that can be read."""


@pytest.fixture(scope="module", params=["True", "False"], ids=["default", "all authenticated"])
def server(start, request):
    """With the defaults, and with `allow_unauthenticated_access` off."""
    return start(f"--ServerApp.allow_unauthenticated_access={request.param}")


@pytest.fixture(scope="module")
def browser(server):
    """The headers of a browser that logged in: a cookie, and no token."""
    cookies, xsrf = server.cookies()
    return {"Cookie": cookies}, {"X-XSRFToken": xsrf}


def knock(server, route, headers=None, query="", base=BASE):
    """Ask; the status, and the answer's body where it is refused."""
    method, name = route.split()
    if method == "WS":
        try:
            server.open(headers, query, base).close()
        except websocket.WebSocketBadStatusException as error:
            return error.status_code, error.resp_body
        return 101, b""
    body = b"" if method == "POST" else None
    answer = server.ask(f"workbench/api/{name}{query}", method, body, headers, base)
    return answer.status, answer.body


def refused(answer, status, why=""):
    """The answer refuses, as JSON that says why."""
    assert answer[0] == status
    told = json.loads(answer[1])
    assert told["message"] == told["reason"]
    assert told["reason"]
    assert why in told["reason"]
    return True


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({}, ""),
        ({"Authorization": "token wrong"}, ""),
        ({"Authorization": f"token {TOKEN[:-1]}"}, ""),
        ({"Authorization": "Bearer "}, ""),
        ({"Cookie": "username-127-0-0-1=2|1:0|10:1|4:name|4:YQ==|0000"}, ""),
        ({}, "?token=wrong"),
        ({}, "?token="),
    ],
)
def test_a_stranger_gets_nothing(server, route, headers, query):
    """Without a token or with a wrong one the answer is an error without content."""
    answer = knock(server, route, headers, query)
    if route == "POST read" and answer[0] == 403 and b"_xsrf" in answer[1]:
        return  # a stranger's form is refused before that
    assert refused(answer, 403, "not logged in")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"Authorization": f"token {TOKEN}"}, ""),
        ({"Authorization": f"Bearer {TOKEN}"}, ""),
        ({}, f"?token={TOKEN}"),
    ],
)
def test_the_token_opens(server, route, headers, query):
    """By header or in the query."""
    assert knock(server, route, headers, query)[0] == OPEN[route]


@pytest.mark.parametrize("route", ROUTES)
def test_the_cookie_opens(server, browser, route):
    """Of a browser that logged in."""
    cookie, xsrf = browser
    assert knock(server, route, {**cookie, **xsrf})[0] == OPEN[route]
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert knock(server, route, {**cookie, **xsrf, **own})[0] == OPEN[route]


@pytest.mark.parametrize("route", ROUTES)
def test_a_page_of_another_origin_gets_nothing_by_the_cookie(server, browser, route):
    """The browser adds the cookie for any sender; the origin shows the sender."""
    cookie, xsrf = browser
    status = 403 if route == "WS live" else 404
    assert refused(knock(server, route, {**cookie, **xsrf, **ELSEWHERE}), status, "another origin")
    assert refused(knock(server, route, {**cookie, "Origin": "null"}), status)


def test_a_form_of_another_site_is_refused(server, browser):
    """A POST by cookie alone, without the token against forgery, is not read."""
    cookie, _ = browser
    assert refused(knock(server, "POST read", cookie), 403, "_xsrf")
    assert refused(knock(server, "POST read", {**cookie, "X-XSRFToken": "2|a|b|1"}), 403)


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_outside_the_base_url(server, right, route):
    """Another user's base URL, or none, has no such routes."""
    for base in ("/", "/user/bob/"):
        status, _ = knock(server, route, right, base=base)
        assert status in (
            403,
            404,
        )  # 403: Jupyter's own check of forms, before it selects a route


def test_a_wrong_method_is_said_to_be_one(server, right):
    """As JSON too."""
    answer = server.ask("workbench/api/snapshot", "POST", b"", right)
    assert refused((answer.status, answer.body), 405)
    answer = server.ask("workbench/api/live", "GET", None, right)
    assert refused((answer.status, answer.body), 400, "WebSocket")


@pytest.mark.parametrize(("path", "status"), [("metrics", 403), (f"metrics?token={TOKEN}", 200)])
def test_metrics_are_for_those_who_have_the_token(server, path, status):
    """As Jupyter's own."""
    assert server.ask(path).status == status


@pytest.mark.parametrize("route", ROUTES)
def test_the_authoriser_decides(allowed, right, route):
    """Who may not read `workbench` is refused; anything else refused changes nothing here."""
    if route not in ("GET snapshot", "GET findings"):  # this server's snapshot waits for its NVML
        allowed.refuse("write workbench", "execute workbench", "read contents")
        assert knock(allowed, route, right)[0] == OPEN[route]
    allowed.refuse("read workbench")
    assert refused(knock(allowed, route, right), 403, "not authorized to read")


def test_stopping_a_cluster_needs_a_permission_of_its_own(allowed, right):
    """Who may read may not stop; a stranger may do neither."""
    answer = allowed.ask("workbench/api/clusters/none", "DELETE", headers=right)
    assert answer.status == 404
    answer = allowed.ask("workbench/api/clusters/none", "DELETE")
    assert refused((answer.status, answer.body), 403)
    allowed.refuse("write workbench")
    answer = allowed.ask("workbench/api/clusters/none", "DELETE", headers=right)
    assert refused((answer.status, answer.body), 403, "not authorized to write")


def test_watching_is_no_activity(server, right):
    """A panel that was left open does not keep an idle server from being shut down."""

    def last():
        return server.ask("api/status", headers=right).json()["last_activity"]

    server.ask("api/kernels", headers=right)
    before = last()
    for route in ROUTES:
        knock(server, route, right)
    assert last() == before
    server.ask("api/kernels", headers=right)
    assert last() != before


def test_no_answer_contains_a_token(server, browser, right):
    """Not in an error, and not in the log."""
    for route in ROUTES:
        for headers in ({}, right, browser[0], {**browser[0], **ELSEWHERE}):
            assert TOKEN.encode() not in knock(server, route, headers)[1]
    assert TOKEN not in server.log.read_text().split("workbench/api", 1)[-1]
