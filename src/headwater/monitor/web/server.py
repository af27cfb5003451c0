"""The dashboard's server: pages and figures of runs over HTTP, to this machine alone unless told otherwise.

In: a `RunList`. Out: `GET /` (the page), its script and style, `GET /api/...` (JSON). Nothing is written, no path comes
from a browser (runs go by an id), and only requests that name this very server are answered, so that a page of
another site cannot read along. On an address that others reach, a secret in the URL is asked for.

    with DashboardServer(RunList([Path("workspace")]), port=0) as server: print(server.url); server.serve()
"""

from __future__ import annotations

import gzip
import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from headwater.core.errors import UserError
from headwater.core.jsonl import json_safe
from headwater.monitor.web.page import dashboard_page, static_file
from headwater.monitor.web.reader import POINTS, RunReader
from headwater.monitor.web.runs import RunList

PORTS_TRIED = 20
MOST_POINTS = 4000
COMPRESS_FROM = 4096
COOKIE = "headwater_dashboard"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Query = dict[str, str]


class NotFoundError(Exception):
    """There is no such page, run or figure."""


class DashboardServer(ThreadingHTTPServer):
    """Listens as soon as it is made. `url` is what to open; a busy `port` moves to the next free one, 0 takes any."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, runs: RunList, host: str = "127.0.0.1", port: int = 0) -> None:
        self.runs = runs
        self.secret = "" if _is_loopback(host) else secrets.token_urlsafe(16)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listen(host, port)
        self.host, self.port = host, int(self.server_address[1])
        shown = f"[{host}]" if ":" in host else host
        named = {"0.0.0.0": socket.gethostname(), "[::]": socket.gethostname()}.get(shown, shown)
        self.url = f"http://{named}:{self.port}/" + (f"?secret={self.secret}" if self.secret else "")

    def _listen(self, host: str, port: int) -> None:
        for candidate in range(port, min(port + PORTS_TRIED, 65536)) if port else (0,):
            try:
                super().__init__((host, candidate), _Handler)
                return
            except OSError as error:
                problem = error
        raise UserError(
            f"cannot listen on {host}:{port}: {problem.strerror or problem}",
            where="--host, --port",
            mend="choose another address or port; --port 0 takes any free one",
        )

    def serve(self) -> None:
        """Answer until `shutdown` is called or Ctrl-C comes."""
        threading.Thread(target=self._read_ahead, daemon=True).start()
        self.serve_forever(poll_interval=0.1)

    def _read_ahead(self) -> None:
        """The run that a page shows first is read before it is asked for."""
        for run in _list_of_runs(self.runs)[:1]:
            self.runs.readers()[run["id"]].refresh()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away in the middle of an answer is nothing to speak of."""

    def __enter__(self) -> DashboardServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    server_version = "headwater"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if not self._named_rightly() or self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self._send(HTTPStatus.FORBIDDEN, b"This dashboard answers to its own address only.\n", "text/plain")
            return
        if not self._let_in(query):
            self._send(HTTPStatus.UNAUTHORIZED, b"Open the whole address that the command printed.\n", "text/plain")
            return
        try:
            body, kind = self._answer(parts.path, query)
        except NotFoundError:
            self._send(HTTPStatus.NOT_FOUND, b"There is nothing here.\n", "text/plain")
            return
        except (ValueError, OverflowError) as error:
            self._send(HTTPStatus.BAD_REQUEST, f"{error}\n".encode(errors="replace"), "text/plain")
            return
        self._send(HTTPStatus.OK, body, kind)

    do_HEAD = do_GET

    def _answer(self, path: str, query: Query) -> tuple[bytes, str]:
        if path == "/":
            return dashboard_page(), "text/html"
        if path == "/api/runs":
            return _json(_list_of_runs(self.server.runs)), "application/json"
        if path in _OF_A_RUN:
            reader = self.server.runs.readers().get(query.get("run", ""))
            if reader is None:
                raise NotFoundError
            return _json(_OF_A_RUN[path](reader, query)), "application/json"
        found = static_file(path.removeprefix("/static/")) if path.startswith("/static/") else None
        if found is None:
            raise NotFoundError
        return found

    def _named_rightly(self) -> bool:
        """The Host header is this server's: a name that an attacker points at 127.0.0.1 is another."""
        named = urlsplit(f"//{self.headers.get('Host', '')}")
        try:
            name, port = (named.hostname or "").lower(), named.port or 80
        except ValueError:
            return False
        if port != self.server.port:  # through a tunnel the port is another; only the names of loopback may be then
            return _is_loopback(name)
        if self.server.secret:  # bound to an address that others reach, by whatever name
            return name in (self.server.host, socket.gethostname().lower(), "localhost") or _is_address(name)
        return _is_loopback(name)

    def _let_in(self, query: Query) -> bool:
        if not self.server.secret:
            return True
        try:
            kept = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            kept = None
        given = (query.get("secret", ""), kept.value if kept else "")
        return any(hmac.compare_digest(one.encode(), self.server.secret.encode()) for one in given)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if self.server.secret and status == HTTPStatus.OK:
            self.send_header("Set-Cookie", f"{COOKIE}={self.server.secret}; HttpOnly; SameSite=Strict; Path=/")
        if len(body) >= COMPRESS_FROM and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not news."""


def _list_of_runs(runs: RunList) -> list[dict[str, Any]]:
    found = []
    for key, reader in runs.readers().items():
        # Nothing waits for a long record that has not been read yet and may not be looked at.
        seen = reader.refresh() if reader.version else 0
        found.append({"id": key, "version": seen, **(reader.summary() if seen else reader.peek())})
    return sorted(found, key=lambda run: (str(run["created"]), str(run["name"])), reverse=True)


def _view(reader: RunReader, query: Query) -> Any:
    reader.refresh()
    points = min(MOST_POINTS, max(50, int(query.get("points", POINTS))))
    span = (float(query["from"]), float(query["to"])) if "from" in query and "to" in query else None
    return reader.view(points, span)


def _heat(reader: RunReader, query: Query) -> Any:
    return reader.heat(query.get("metric"))


_OF_A_RUN: dict[str, Callable[[RunReader, Query], Any]] = {"/api/view": _view, "/api/heat": _heat}


def _json(value: Any) -> bytes:
    return orjson.dumps(json_safe(value), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
