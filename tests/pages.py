"""Looking at a training page from a callback of the fit that it shows."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import keras
import pytest


def url_in_log(caplog: pytest.LogCaptureFixture) -> str:
    """The URL of the newest page that the log knows."""
    found = [one.getMessage() for one in caplog.records if one.getMessage().startswith("training page: ")]
    return found[-1].removeprefix("training page: ")


def snapshot(url: str) -> dict[str, Any]:
    """What the page at a URL is told."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)) as connection:
        connection.request("GET", f"{parts.path}snapshot")
        reply = connection.getresponse()
        assert reply.status == 200
        found: dict[str, Any] = json.loads(reply.read())
        return found


class AtEpochs(keras.callbacks.Callback):
    """Calls a function with the page's URL at the end of each epoch, while workers are there."""

    def __init__(self, caplog: pytest.LogCaptureFixture, look: Callable[[str, int], object]) -> None:
        super().__init__()
        self.caplog, self.look, self.url = caplog, look, ""
        self.seen: list[Any] = []

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.url = url_in_log(self.caplog)
        self.seen.append(self.look(self.url, epoch))
