"""What surrounds the application: API key, size of bodies, metrics of responses, and server-sent events.

Plain ASGI, outermost first: `Measured(Guarded(Limited(app)))`. A request without the key is answered before its body
is read.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.serve.errors import ApiError, timed_out, too_large, unauthorized
from headwater.serve.metrics import ServerMetrics

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Answered without a key: they tell nothing about requests but their number."""


class JsonResponse(Response):
    """A JSON body. Text that a model made is always valid Unicode, so it always has one."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def error_response(error: ApiError) -> JsonResponse:
    return JsonResponse(error.body(), status_code=error.status, headers=error.headers())


class Guarded:
    """Demands `Authorization: Bearer KEY` everywhere but on `OPEN_PATHS`. Without a key all is open."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._expected = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._expected is not None and scope["path"] not in OPEN_PATHS:
            given = Headers(scope=scope).get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, self._expected):
                await error_response(unauthorized())(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Limited:
    """Reads the whole body first, up to a size and within a time, and hands it on in one piece."""

    def __init__(self, app: ASGIApp, most_bytes: int, timeout_seconds: float) -> None:
        self._app, self._most, self._timeout = app, most_bytes, timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self._most:
            await error_response(too_large(self._most))(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout):
                body = await self._read(receive)
        except TimeoutError:
            await error_response(timed_out(self._timeout))(scope, receive, send)
            return
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        if body is None:
            return  # the client left while sending
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal first
            if first is not None:
                message, first = first, None
                return message
            return await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most:
                raise too_large(self._most)
            if not message.get("more_body", False):
                return b"".join(parts)


class Measured:
    """Counts responses by path and status."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.responded(path, message["status"])
            await send(message)

        await self._app(scope, receive, counted)


async def watch_disconnect(receive: Receive, gone: Callable[[], None]) -> None:
    """Call `gone` when the client leaves. To be run as a task and cancelled when the answer is done."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()


class EventStream(Response):
    """Server-sent events: `data: {json}` and a blank line for each object, then `data: [DONE]`.

    `gone` is called when the client leaves; the events are expected to end soon after.
    """

    def __init__(self, events: AsyncGenerator[dict[str, Any], None], gone: Callable[[], None]) -> None:
        super().__init__(status_code=200, media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events, self._gone = events, gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(watch_disconnect(receive, self._gone))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._events:
                await self._send(send, b"data: " + orjson.dumps(event) + b"\n\n")
            if not watcher.done():
                await self._send(send, b"data: [DONE]\n\n")
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            self._gone()
        finally:
            watcher.cancel()
            self._gone()  # a server that is stopped cancels this task: nobody waits any more
            await self._events.aclose()

    @staticmethod
    async def _send(send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
