"""A real Chromium, driven over its debugging pipe: pages opened, keys pressed, requests counted, pictures taken.

In: nothing but the program itself (`chromium`, `google-chrome` ..., or $HEADWATER_CHROMIUM). Out: `Browser`.

    with Browser() as browser: page = browser.open("http://127.0.0.1:8000/"); page.run("document.title")
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0
BEGIN = (
    "import fcntl, os, sys; a, b = (fcntl.fcntl(int(x), fcntl.F_DUPFD, 10) for x in sys.argv[1:3]); "
    "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""The browser reads commands from file 3 and answers on file 4, whatever their numbers are here."""


def find_chromium() -> str | None:
    """The program, or None."""
    given = os.environ.get("HEADWATER_CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One headless Chromium with an empty profile, gone when the block ends."""

    def __init__(self) -> None:
        program = find_chromium()
        assert program is not None
        self._profile = tempfile.TemporaryDirectory(prefix="headwater-chromium-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "--no-first-run",
            "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--no-default-browser-check", "--hide-scrollbars", "--disable-dev-shm-usage", "--disable-extensions",
        ]  # fmt: skip
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # which it refuses to have as root
        begin = [sys.executable, "-ISc", BEGIN, str(to_browser), str(from_browser), program, *flags, "about:blank"]
        self._process = subprocess.Popen(
            begin, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """One command; its result. RuntimeError with the browser's words if it refuses."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline)
            if answer is None:
                raise TimeoutError(f"{method}: no answer in {PATIENCE:.0f} s")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any] | None:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            data = os.read(self._in, 1 << 16)
            if not data:
                raise RuntimeError("the browser has gone")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A page of its own, on its way to `url`."""
        page = self.blank(width=width, height=height, dark=dark)
        page.go(url)
        return page

    def blank(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """An empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                    {"name": "prefers-reduced-motion", "value": "reduce"}]  # fmt: skip
        page.call("Emulation.setEmulatedMedia", features=features)
        return page

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """Value of a JavaScript expression (promises awaited). RuntimeError with what it throws."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"].get("exception", done["exceptionDetails"])))
        return done["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Until the expression is true; its value. AssertionError after `seconds`."""
        return wait_for(lambda: self.run(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()"),
                        expression, seconds)  # fmt: skip

    def ready(self) -> Page:
        """Until the page has drawn itself."""
        self.wait("document.documentElement.dataset.ready")
        return self

    def key(self, name: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, text=text if kind == "keyDown" else "", code=name)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path: Path, *, whole: bool = True, height: int | None = None) -> Path:
        """A PNG of the page, of its first `height` pixels if given."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        tall = min(size["height"], height) if height else size["height"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": tall, "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def requests(self) -> list[str]:
        """Every address this page has asked for, in order."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors and refusals (of the security policy, for example) on the page's console."""
        self.run("1")
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


def wait_for(question: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Until the answer is true; the answer."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return answer
