"""Chromium without a window, driven by its DevTools protocol: what a page shows, and pictures of it."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import websocket

_SECONDS = 30.0  # to start, and for a condition to become true
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--hide-scrollbars",
    "--no-first-run",
    # No request leaves this machine: the browser would ask for updates of its parts.
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find_chromium() -> str | None:
    """Return the path of Chromium, None if it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accessible:
    """Properties of an element that a screen reader gets."""

    role: str
    name: str
    is_focusable: bool


class Tab:
    """A page of the browser."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=_SECONDS, suppress_origin=True)
        self._numbers = itertools.count(1)
        self.errors: list[str] = []  # of scripts and of the content security policy
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the connection to the browser."""
        self._socket.close()

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a method of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"]["text"])
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def show(self, url: str, *, width: int, height: int, is_dark: bool = False) -> None:
        """Open an address in a window of this size, in CSS pixels."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str) -> None:
        """Return once an expression is true. Raises TimeoutError."""
        deadline = time.monotonic() + _SECONDS
        while not self.value(f"Boolean({expression})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} is not true: {self.value('document.body.innerText')}")
            time.sleep(0.1)

    def accessibles(self) -> list[Accessible]:
        """Return what a screen reader gets of the page, without hidden elements."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [_accessible(node) for node in nodes if not node["ignored"]]

    def press(self, key: str, *, is_shifted: bool = False) -> None:
        """Press and release a key, such as Tab or ArrowRight."""
        text = {"text": _TEXTS[key]} if key in _TEXTS else {}
        for kind in ("keyDown", "keyUp"):
            parameters = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": _CODES.get(key, 0)}
            self.call("Input.dispatchKeyEvent", **parameters, **text, modifiers=_SHIFT if is_shifted else 0)

    def picture(self, file: Path) -> None:
        """Write what the window shows as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


_CODES = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39}  # of keys for Windows, which the protocol requires
_SHIFT = 8  # among the modifiers of a key
_TEXTS = {"Enter": "\r", " ": " "}


def _accessible(node: dict[str, Any]) -> Accessible:
    properties = {one["name"]: one["value"].get("value") for one in node.get("properties", [])}
    return Accessible(
        role=str(node["role"]["value"]),
        name=str(node.get("name", {}).get("value", "")),
        is_focusable=bool(properties.get("focusable")),
    )


@contextmanager
def open_tab() -> Iterator[Tab]:
    """Start Chromium with a new profile and yield its page. Raises SystemExit without Chromium."""
    program = find_chromium()
    if program is None:
        raise SystemExit("error: Chromium is not installed\n  hint: install the package `chromium`")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = [*_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0"]
        process = subprocess.Popen([program, *flags, "about:blank"], stderr=subprocess.DEVNULL)
        try:
            with closing(Tab(_address(Path(profile) / "DevToolsActivePort"))) as tab:
                yield tab
        finally:
            process.terminate()
            process.wait(_SECONDS)


def _address(file: Path) -> str:
    """Return the address of the first page, once the browser has written its port."""
    deadline = time.monotonic() + _SECONDS
    while not (file.exists() and file.read_text(encoding="utf-8")):
        if time.monotonic() > deadline:
            raise TimeoutError("Chromium did not start")
        time.sleep(0.05)
    port = file.read_text(encoding="utf-8").split()[0]
    with urlopen(f"http://127.0.0.1:{port}/json") as answer:
        pages = [page for page in json.load(answer) if page["type"] == "page"]
    address: str = pages[0]["webSocketDebuggerUrl"]
    return address
