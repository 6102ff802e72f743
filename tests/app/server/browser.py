"""Headless Chromium, driven over a pipe by its DevTools protocol, for the tests of the page."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--no-proxy-server", "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """Return the path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """A browser with one page."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands = commands
        self._replies = replies
        self._rest = b""
        self._n_commands = 0
        self._session = ""
        self.console: list[str] = []
        """Warnings and errors in the browser's log: failed requests, refusals of the policy, and
        exceptions."""
        self.requests: list[str] = []
        """Addresses that the page asked for."""

    def start(self) -> None:
        """Open an empty page."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Load a page and wait until it is complete."""
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < deadline_s, f"in vain: {expression}\n{self.text()}"
            time.sleep(0.02)

    def text(self) -> str:
        """Return the text of the page that a person sees."""
        return str(self.value("document.body.innerText"))

    def type(self, text: str) -> None:
        """Type a text into the focused element."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, code: int, shift: bool = False) -> None:
        """Press a key."""
        fields: dict[str, Any] = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": code,
            "modifiers": 8 if shift else 0,
        }
        if key == "Enter":
            fields["text"] = "\r"
        self._call("Input.dispatchKeyEvent", type="keyDown", **fields)
        self._call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def resize(self, width: int, height: int, is_dark: bool = False) -> None:
        """Set the size of the window, and the colours that the person prefers."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = "dark" if is_dark else "light"
        self._call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._n_commands += 1
        command: dict[str, Any] = {
            "id": self._n_commands,
            "method": method,
            "params": parameters,
        }
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._n_commands:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._record(message)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            is_ready, _, _ = select.select([self._replies], [], [], PATIENCE_S)
            assert is_ready, "the browser does not answer"
            piece = os.read(self._replies, 1 << 16)
            assert piece, "the browser has ended"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def _record(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Log.entryAdded":
                if parameters["entry"]["level"] in ("warning", "error"):
                    self.console.append(parameters["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.console.append(parameters["exceptionDetails"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])


@contextmanager
def browsing(program: str, folder: Path) -> Iterator[Browser]:
    """Run a browser until the end of the block.

    Args:
        program: path of Chromium.
        folder: empty folder for its profile.
    """
    command_read, command_write = os.pipe()
    reply_read, reply_write = os.pipe()
    arguments = [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_with_pipe(command_read, reply_write),
        close_fds=False,
        start_new_session=True,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(command_read)
    os.close(reply_write)
    browser = Browser(command_write, reply_read)
    try:
        browser.start()
        yield browser
    finally:
        os.close(command_write)
        os.close(reply_read)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _with_pipe(commands: int, replies: int) -> Callable[[], None]:
    """Return what the browser's process does first: its protocol uses descriptors 3 and 4."""

    def move() -> None:
        high_commands = os.dup(commands)
        high_replies = os.dup(replies)
        os.dup2(high_commands, 3)
        os.dup2(high_replies, 4)

    return move
