"""The webhook bridge: takes Alertmanager's alerts and sends them to Slack, Feishu and DingTalk.

In: POST requests of Alertmanager; addresses and secrets, from environment variables alone. Out: messages. Nothing
secret is ever printed. What cannot be delivered is answered with 502, and Alertmanager tries again; those that got the
message already do not get it twice.

    HEADWATER_SLACK_WEBHOOK=https://hooks.slack.com/services/... headwater alerts
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

from headwater.core.errors import HeadwaterError, InputError, UserError
from headwater.core.jsonl import parse_json
from headwater.monitor.alerts_formats import (
    Notice,
    dingtalk_body,
    dingtalk_url,
    feishu_body,
    notice_of,
    slack_body,
)
from headwater.monitor.alerts_words import Language

PORT = 9095
"""Beside Alertmanager, which has 9093 and 9094 itself."""

TOKEN = "HEADWATER_ALERTS_TOKEN"
PLACES = ("slack", "feishu", "dingtalk")
LARGEST_REQUEST = 1 << 20
LONGEST_ANSWER = 1 << 16
ANSWER_SECONDS = 10.0
REMEMBERED_SECONDS = 600.0
"""For so long a message that one place took is not sent there again while others are tried once more."""


class DeliveryError(HeadwaterError):
    """A place did not take a message. Says which and why, never where it was sent."""


@dataclass(frozen=True)
class Destination:
    """One robot. Address and secret are kept out of `repr`."""

    place: str
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)

    def send(self, notice: Notice) -> None:
        """Raises DeliveryError if the message was not taken."""
        url, now = self.url, time.time()
        if self.place == "slack":
            body = slack_body(notice)
        elif self.place == "feishu":
            body = feishu_body(notice, secret=self.secret, seconds=int(now))
        else:
            body = dingtalk_body(notice)
            url = dingtalk_url(url, secret=self.secret, milliseconds=int(now * 1000))
        said = self._post(url, body)
        # Slack answers "ok"; the others 200 with a code, which is not 0 when they refuse.
        if self.place != "slack" and (code := _refusal(said)):
            raise DeliveryError(f"{self.place} refused the message: {code}")

    def _post(self, url: str, body: Mapping[str, Any]) -> bytes:
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        request = urllib.request.Request(url, data, {"Content-Type": "application/json; charset=utf-8"})
        try:
            with _opener.open(request, timeout=ANSWER_SECONDS) as answer:
                return bytes(answer.read(LONGEST_ANSWER))
        except urllib.error.HTTPError as error:
            error.close()
            raise DeliveryError(f"{self.place} answered with {error.code}") from None
        except (OSError, ValueError, HTTPException) as error:  # the error's own words may hold the address
            reason = getattr(error, "reason", error)
            words = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
            raise DeliveryError(f"{self.place} cannot be reached: {words}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address with a secret in it is not handed on to another place."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _refusal(said: bytes) -> str:
    """Why Feishu or DingTalk refused; "" if they did not."""
    try:
        answer = parse_json(said)
        code = next((answer[key] for key in ("errcode", "code", "StatusCode") if key in answer), None)
    except (ValueError, TypeError, RecursionError):
        return "the answer is not JSON"
    if code == 0:
        return ""
    words = next((str(answer[key]) for key in ("errmsg", "msg", "StatusMessage") if answer.get(key)), "")
    return f"code {code} {words}".strip()[:200]


def destinations(environment: Mapping[str, str]) -> list[Destination]:
    """The places whose HEADWATER_<PLACE>_WEBHOOK is set. UserError for an address that is none; it is not printed."""
    found = []
    for place in PLACES:
        name = f"HEADWATER_{place.upper()}_WEBHOOK"
        url = environment.get(name, "").strip()
        if not url:
            continue
        _check_url(url, name)
        found.append(Destination(place, url, environment.get(f"HEADWATER_{place.upper()}_SECRET", "").strip() or None))
    if not found:
        raise UserError(
            "no place to send alerts to",
            where="environment",
            mend="set HEADWATER_SLACK_WEBHOOK, HEADWATER_FEISHU_WEBHOOK or HEADWATER_DINGTALK_WEBHOOK",
        )
    return found


def _check_url(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        good = good and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        good = good and all("!" <= character <= "~" for character in url)  # nothing that cannot be sent
    except ValueError:
        good = False
    if not good:
        raise UserError("is no https:// address", where=name, mend="copy the whole address of the robot's webhook")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Bridge:
    """Listens until `close`. UserError if the address cannot be had."""

    def __init__(
        self,
        places: list[Destination],
        host: str = "127.0.0.1",
        port: int = PORT,
        *,
        token: str | None = None,
        language: Language = "en",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`token`: what callers must send as `Authorization: Bearer`. `say` is told of every message and failure."""
        self._places, self._token, self._language, self._say = places, token, language, say
        self._lock = Lock()
        self._taken: dict[tuple[str, str], float] = {}
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self))
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port}: {error.strerror}", where="--port", mend="choose another port"
            ) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://{host}:{self.port}/"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def allowed(self, authorization: str) -> bool:
        return self._token is None or hmac.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    def deliver(self, body: bytes) -> list[str]:
        """Send one webhook on to every place that has not had it; what failed, in words. InputError for no webhook."""
        try:
            payload = parse_json(body)
        except (ValueError, RecursionError) as error:
            raise InputError("the request is not JSON", where="request") from error
        notice, key = notice_of(payload, self._language), hashlib.sha256(body).hexdigest()
        waiting = [place for place in self._places if not self._has(place, key)]
        failures = []
        for place in waiting:
            try:
                place.send(notice)
            except DeliveryError as error:
                failures.append(error.what)
                self._say(f"{error.what}; Alertmanager will try again")
                continue
            with self._lock:
                self._taken[place.place, key] = time.monotonic()
            self._say(f"{notice.title}: sent to {place.place}")
        if not failures:  # done; the same alerts may come again later, and are meant then
            with self._lock:
                self._taken = {which: when for which, when in self._taken.items() if which[1] != key}
        return failures

    def _has(self, place: Destination, key: str) -> bool:
        """Whether a place took this very message a moment ago, when another did not."""
        with self._lock:
            now = time.monotonic()
            self._taken = {which: when for which, when in self._taken.items() if now - when < REMEMBERED_SECONDS}
            return (place.place, key) in self._taken


def _handler(bridge: Bridge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30
        server_version, sys_version = "headwater", ""

        def do_GET(self) -> None:
            self._answer(*((200, "ok") if self.path == "/healthz" else (404, "alerts are sent here with POST")))

        def do_POST(self) -> None:
            said = self.headers.get("Content-Length", "")
            length = int(said) if said.isdecimal() and len(said) < 16 else -1
            body = self.rfile.read(length) if 0 <= length <= LARGEST_REQUEST else b""
            if not bridge.allowed(self.headers.get("Authorization", "")):
                self._answer(401, "the token is missing or another")
            elif self.headers.get_content_type() != "application/json":  # a web page cannot send this unasked
                self._answer(415, "send application/json")
            elif not 0 <= length <= LARGEST_REQUEST:
                self._pass_over(length)
                self._answer(413, f"send at most {LARGEST_REQUEST} bytes, and say how many")
            else:
                self._deliver(body)

        def _pass_over(self, length: int) -> None:
            """Read what is not wanted, within reason: closed on while it sends, a client would never see the answer."""
            left = min(length, 8 * LARGEST_REQUEST)
            while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
                left -= len(data)

        def _deliver(self, body: bytes) -> None:
            try:
                failures = bridge.deliver(body)
            except InputError as error:
                self._answer(400, error.what)
                return
            self._answer(502 if failures else 200, "; ".join(failures) or "sent")

        def _answer(self, code: int, words: str) -> None:
            data = f"{words}\n".encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
