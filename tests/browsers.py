"""A headless Chromium of a test's own, driven over a pipe by the DevTools protocol. Needs no port and no other package."""

from __future__ import annotations

import base64
import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tool_modules import loaded

PATIENCE = 60.0


def tool() -> ModuleType:
    """tools/chromium.py, which knows where the browser is."""
    return loaded("chromium")


class Tab:
    """One tab. errors: what its page has complained of."""

    def __init__(self, to: int, back: int) -> None:
        self.errors: list[str] = []
        self._to, self._back, self._rest, self._number, self._session = to, back, b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def open(self, url: str) -> None:
        self.errors.clear()
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """What an expression gives once that is true."""
        end = time.monotonic() + PATIENCE
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"{expression} did not become true. {self.errors}"
            self.value("new Promise((resolve) => setTimeout(resolve, 50))")
        return found

    def press(self, key: str) -> None:
        more = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def screen(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, *, whole: bool = True) -> bytes:
        """A screenshot, PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def _message(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._back, selectors.EVENT_READ)
            while b"\0" not in self._rest:
                assert selector.select(PATIENCE), "the browser says nothing"
                came = os.read(self._back, 2**20)
                assert came, "the browser has ended"
                self._rest += came
        text, self._rest = self._rest.split(b"\0", 1)
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(given["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(given["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and given["type"] == "error":
            self.errors.append(str(given["args"]))


@contextmanager
def tab() -> Iterator[Tab]:
    """A browser with one empty tab; it ends with the test."""
    program = tool().program()
    assert program is not None
    to_browser, to = os.pipe()
    back, from_browser = os.pipe()

    def place() -> None:
        """The browser reads from descriptor 3 and writes to 4."""
        one, other = os.dup(to_browser), os.dup(from_browser)
        os.dup2(one, 3)
        os.dup2(other, 4)
        os.set_inheritable(3, True)
        os.set_inheritable(4, True)

    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        command = [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-extensions", "--disable-background-networking", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
        ]
        with open(os.path.join(folder, "browser.log"), "wb") as log:
            browser = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, close_fds=False, preexec_fn=place
            )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Tab(to, back)
        finally:
            os.close(to)
            os.close(back)
            browser.terminate()
            try:
                browser.wait(20)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.wait(20)
