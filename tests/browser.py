"""A real browser for tests: Chromium without a window, driven over the pipe of its DevTools protocol.

No package is needed for it. Skips where there is no Chromium; with MARIUS_REQUIRE_BROWSER set that fails.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
TIMEOUT_S = 90


def find_browser() -> str:
    """Path of Chromium; skips or fails without one."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is installed"
        if os.environ.get("MARIUS_REQUIRE_BROWSER"):
            pytest.fail(f"MARIUS_REQUIRE_BROWSER is set, but there is {reason}")
        pytest.skip(reason)
    return found


@dataclass
class Visit:
    """What happened while a page was open.

    Attributes:
        errors: what the console, the log and scripts complained of.
        requests: addresses that were asked for, the page's own first.
        screenshot: PNG of the whole page.
        facts: value of the script that was given.
    """

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    screenshot: bytes = b""
    facts: Any = None


class Browser:
    """One Chromium with a profile of its own; use as a context manager."""

    def __init__(self) -> None:
        program = find_browser()
        self._profile = tempfile.mkdtemp(prefix="browser-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # It reads requests from descriptor 3 and writes answers to descriptor 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", program, *FLAGS, f"--user-data-dir={self._profile}"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._buffer = b""
        self._watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        self._watchdog.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._watchdog.cancel()
        self._watchdog.join()
        self._process.kill()
        self._process.wait(30)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def visit(self, page: Path, script: str, *, width: int = 1000) -> Visit:
        """Open a file, evaluate `script` (an expression that may be a promise), take a picture."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", session, **size)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable", session)
        self._ask("Page.navigate", session, url=page.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive())
        given = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self._ask("Runtime.evaluate", session, **given)
        visit = Visit(facts=answer["result"].get("value"))
        if "exceptionDetails" in answer:
            raise AssertionError(f"the script failed: {answer['exceptionDetails']}")
        picture = self._ask("Page.captureScreenshot", session, captureBeyondViewport=True)["data"]
        visit.screenshot = base64.b64decode(picture)
        for event in self._events:
            parameters = event.get("params", {})
            match event.get("method"):
                case "Network.requestWillBeSent":
                    visit.requests.append(parameters["request"]["url"])
                case "Runtime.exceptionThrown":
                    visit.errors.append(str(parameters["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                    visit.errors.append(str(parameters["args"]))
                case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                    visit.errors.append(str(parameters["entry"]))
        self._events = []
        return visit

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self._number:
                self._events.append(answer)
                continue
            if "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            result: dict[str, Any] = answer["result"]
            return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            block = os.read(self._from, 1 << 16)
            if not block:
                raise AssertionError(f"the browser ended, or gave no answer for {TIMEOUT_S} s")
            self._buffer += block
        content, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(content)
        return message
