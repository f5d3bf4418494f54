"""The server of a training page, on the driver: one page, and snapshots of what it shows. It can be read, and nothing else.

The token is the first part of the path. Whoever has it sees the page, and all other requests get the same empty 404.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any, cast

from flask import Flask, Response, request

from elephas_like.core.monitoring import Monitor
from elephas_like.core.report import live_page
from elephas_like.exchange.protocol import Sizes
from elephas_like.exchange.request_handler import Handler
from elephas_like.exchange.security import new_token, same_token
from elephas_like.exchange.server import AUTHENTICATED, HttpExchangeServer
from elephas_like.exchange.tls import Identity
from elephas_like.exchange.trial_reports import NO_STATE

LEAST_SECONDS = 1.0
"""Between two snapshots that a page is given."""
HELD_SECONDS = 2.0
"""After which a page gets a snapshot though nothing has happened: workers were last seen longer ago then."""
GOODBYE_SECONDS = 0.5
"""How long the end of a fit waits for a page that is open, to take the last snapshot."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageStore:
    """What the server of a page answers from.

    num_workers: decides how many connections may be open.
    """

    num_workers = 1

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._changed = threading.Condition()
        self._asked_at: float | None = None
        self._waiting = 0
        self._gave_last = False
        self._stopped = False
        self._encoded: tuple[float, bytes] | None = None

    def snapshot(self, after: int | None) -> bytes:
        """Return the newest snapshot as JSON. With `after`, wait for a newer one, but not for long."""
        with self._changed:
            self._asked_at, self._waiting = time.monotonic(), self._waiting + 1
            if after is not None and after >= 0:
                self._changed.wait_for(lambda: self._stopped or self._monitor.over, LEAST_SECONDS)
        try:
            if after is not None and not self._stopped:
                self._monitor.wait(after, HELD_SECONDS - LEAST_SECONDS)
            return self._json(fresh=after is None)
        finally:
            with self._changed:
                self._waiting -= 1
                self._gave_last = self._gave_last or self._monitor.over
                self._changed.notify_all()

    def _json(self, *, fresh: bool) -> bytes:
        """Return the snapshot as JSON. Pages that ask again at about the same time get the same one."""
        with self._changed:
            now = time.monotonic()
            if self._encoded is None or fresh or self._monitor.over or now - self._encoded[0] > LEAST_SECONDS / 2:
                text = json.dumps(self._monitor.snapshot(), allow_nan=False, separators=(",", ":"))
                self._encoded = now, text.encode()
            return self._encoded[1]

    def stop(self) -> None:
        """Give pages that are open the last snapshot, if they come for it at once. What runs is over by then."""
        with self._changed:
            self._changed.notify_all()
            if self._asked_at is not None and time.monotonic() - self._asked_at < HELD_SECONDS + LEAST_SECONDS:
                self._changed.wait_for(lambda: self._gave_last and not self._waiting, GOODBYE_SECONDS)
            self._stopped = True
            self._changed.notify_all()


class PageServer(HttpExchangeServer):
    """Serves the page of a monitor. A context manager; `start` raises PortError where it cannot listen."""

    def __init__(self, monitor: Monitor, host: str, port: int | str = 0, *, identity: Identity | None = None) -> None:
        self._pages = PageStore(monitor)

        def no_handler(store: Any, sizes: Sizes) -> Handler:
            return cast(Handler, None)  # frames are not for this server

        super().__init__(self._pages, new_token(), NO_STATE, host, port, handler=no_handler, identity=identity)

    def url(self, host: str) -> str:
        """Return where browsers find the page. host: the address to come by."""
        scheme = "http" if self._identity is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.address[1]}/{self._token}/"

    def _application(self) -> Flask:
        return page_application(self._pages, self._token)


def page_application(pages: PageStore, token: str) -> Flask:
    """The Flask application. Without the token every request gets the same empty 404."""
    app = Flask("elephas_like", static_folder=None)
    page = live_page()

    @app.before_request
    def check() -> Response | None:
        given, _, rest = request.path.lstrip("/").partition("/")
        known = same_token(given, token)
        if known:
            request.environ.get(AUTHENTICATED, lambda: None)()
        if not known or request.method != "GET" or request.content_length:
            return Response(status=404)
        if rest == "":
            policy = f"{page.policy}; frame-ancestors 'none'"
            # Without the slash at the end the page would ask for its snapshots in the wrong place.
            if not request.path.endswith("/"):
                return Response(status=308, headers={"Location": f"/{token}/"})
            return Response(page.html, headers={**_HEADERS, "Content-Security-Policy": policy}, mimetype="text/html")
        if rest == "snapshot":
            return Response(pages.snapshot(_after()), headers=_HEADERS, mimetype="application/json")
        return Response(status=404)

    return app


def _after() -> int | None:
    """Return the version that the page has; None where it has none, or says something else."""
    text = request.args.get("after", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
