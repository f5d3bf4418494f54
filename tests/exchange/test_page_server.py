"""The server of a training page over real sockets: without the token there is nothing, with it there is one page to read."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from small_world import Background

from elephas_like.core.fit_monitor import FitMonitor
from elephas_like.core.report import live_page
from elephas_like.core.types import EngineName
from elephas_like.exchange.address import PortError
from elephas_like.exchange.page_server import PageServer
from elephas_like.exchange.tls import identity


@pytest.fixture
def monitor() -> FitMonitor:
    found = FitMonitor(lambda: 0.0, lambda: 0.0)
    found.describe(EngineName.SERVER, alone=False, first_epoch=0, epochs=3, model="<b>mlp</b>")
    return found


@pytest.fixture
def server(monitor: FitMonitor) -> Iterator[PageServer]:
    with PageServer(monitor, "127.0.0.1") as running:
        yield running


def asked(server: PageServer, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    reply.body = reply.read()  # type: ignore[attr-defined]
    connection.close()
    return reply


def path_of(server: PageServer) -> str:
    return urlsplit(server.url("127.0.0.1")).path


def test_the_page_is_held_to_a_policy(server: PageServer) -> None:
    reply = asked(server, path_of(server))
    assert (reply.status, reply.body.decode()) == (200, live_page().html)
    assert reply.headers["Content-Security-Policy"] == f"{live_page().policy}; frame-ancestors 'none'"
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    for name, value in {
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
        "X-Frame-Options": "DENY",
    }.items():
        assert reply.headers[name] == value
    assert "Werkzeug" not in str(reply.headers)


def test_a_snapshot_is_what_the_monitor_says(server: PageServer, monitor: FitMonitor) -> None:
    reply = asked(server, f"{path_of(server)}snapshot")
    assert json.loads(reply.body) == monitor.snapshot()
    assert reply.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/", "GET"),
        ("/snapshot", "GET"),
        ("/wrong/", "GET"),
        ("/{token}x/", "GET"),
        ("/{short}/", "GET"),
        ("//{token}x/snapshot", "GET"),
        ("/{token}/other", "GET"),
        ("/{token}/snapshot", "POST"),
        ("/{token}/", "HEAD"),
        ("/{token}/", "OPTIONS"),
        ("/?{token}", "GET"),
    ],
)
def test_all_else_is_the_same_empty_answer(server: PageServer, path: str, method: str) -> None:
    token = path_of(server).strip("/")
    reply = asked(server, path.format(token=token, short=token[:-1]), method, **{"Content-Length": "0"})
    assert (reply.status, reply.body) == (404, b"")
    assert reply.headers["Connection"] == "close"
    assert "Content-Security-Policy" not in reply.headers


def test_the_token_is_one_for_each_page(monitor: FitMonitor) -> None:
    tokens = {path_of(PageServer(monitor, "127.0.0.1")) for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) >= 43 for token in tokens)


def test_a_url_without_its_last_slash_leads_to_the_page(server: PageServer) -> None:
    reply = asked(server, path_of(server).rstrip("/"))
    assert (reply.status, reply.headers["Location"]) == (308, path_of(server))


def test_a_page_that_waits_is_told_the_end_at_once(server: PageServer, monitor: FitMonitor) -> None:
    after = monitor.snapshot()["version"]
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    with closing(connection):
        connection.request("GET", f"{path_of(server)}snapshot?after={after}")
        waiting = Background(lambda: json.loads(connection.getresponse().read()))
        while not server._pages._waiting:
            threading.Event().wait(0.01)
        monitor.ended("finished")
        server.stop()
        assert waiting.result()["status"] == "finished"  # type: ignore[index]


@pytest.mark.parametrize("after", ["", "-1", "x", "1" * 30, "%C2%B2", "0"])
def test_any_version_is_answered(server: PageServer, monitor: FitMonitor, after: str) -> None:
    monitor.ended("finished")
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    with closing(connection):
        connection.request("GET", f"{path_of(server)}snapshot?after={after}")
        assert json.loads(connection.getresponse().read())["status"] == "finished"


def test_it_speaks_tls_with_an_identity(monitor: FitMonitor) -> None:
    with PageServer(monitor, "127.0.0.1", identity=identity()) as running:
        url = urlsplit(running.url("driver.example"))
        assert (url.scheme, url.hostname, url.port) == ("https", "driver.example", running.address[1])
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        with closing(http.client.HTTPSConnection(*running.address, timeout=30, context=trusting)) as connection:
            connection.request("GET", url.path)
            assert connection.getresponse().status == 200


def test_a_number_of_ipv6_has_brackets(monitor: FitMonitor) -> None:
    assert PageServer(monitor, "::1").url("fe80::1").startswith("http://[fe80::1]:0/")


def test_a_port_that_is_taken_is_named(server: PageServer, monitor: FitMonitor) -> None:
    with pytest.raises(PortError, match=str(server.address[1])):
        PageServer(monitor, "127.0.0.1", server.address[1]).start()


def test_no_thread_and_no_port_is_left(monitor: FitMonitor) -> None:
    before = set(threading.enumerate())
    with PageServer(monitor, "127.0.0.1") as running:
        connection = http.client.HTTPConnection(*running.address, timeout=30)
        connection.request("GET", path_of(running))
        connection.getresponse().read()
        monitor.ended("finished")
    assert set(threading.enumerate()) <= before
    connection.close()
    with pytest.raises(OSError, match="refused"):
        asked(running, "/")
