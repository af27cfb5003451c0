"""A real HTTP server on this machine for tests of fetching: ranges, faults, pauses."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Web:
    """What the server holds and how it behaves: `pages` path -> content; `cut` path -> bytes after which each
    connection breaks, so many times; `faults` path -> statuses to answer first; `requests` (time, path, Range)."""

    url: str = ""
    pages: dict[str, bytes] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    faults: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    retry_after: str = ""
    requests: list[tuple[float, str, str]] = field(default_factory=list)
    served: int = 0


@contextmanager
def serve() -> Iterator[Web]:
    """A server on a free port of 127.0.0.1."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None: ...

        def do_GET(self) -> None:
            path = self.path
            web.requests.append((time.monotonic(), path, self.headers.get("Range", "")))
            if web.faults.get(path):
                self._plain(web.faults[path].pop(0), b"fault")
                return
            content = web.pages.get(path)
            if content is None:
                self._plain(404, b"no such page")
                return
            etag = f'"{hashlib.md5(content).hexdigest()}"'
            start = 0
            asked = self.headers.get("Range", "")
            if web.ranges and asked and self.headers.get("If-Range") in (None, etag):
                start = int(asked.removeprefix("bytes=").split("-")[0])
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("ETag", etag)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            if web.cut.get(path):
                body = body[: web.cut[path].pop(0)]
                self.close_connection = True
            self.wfile.write(body)
            web.served += len(body)

        def _plain(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if web.retry_after:
                self.send_header("Retry-After", web.retry_after)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
