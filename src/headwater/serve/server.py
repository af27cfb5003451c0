"""Serve a model until told to stop.

In: a model's folder and `ServeConfig`. Out: a server that talks to the `openai` client. SIGTERM and Ctrl-C stop it:
no new connection is taken, running requests have `shutdown_grace` seconds to end.

    serve("workspace/export/0123456789abcdef/model", ServeConfig(port=8080))
"""

from __future__ import annotations

import errno
import json
import shlex
import socket
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from headwater.core.errors import UserError
from headwater.engine import Engine
from headwater.serve.app import create_app
from headwater.serve.config import ServeConfig, read_api_key
from headwater.serve.service import Service
from headwater.serve.template import ChatTemplate


@dataclass(frozen=True)
class Serving:
    """Where a started server is reached. `curl` is a command line that asks it something."""

    url: str
    model: str
    curl: str
    authenticated: bool

    def __str__(self) -> str:
        return f"serving {self.model} at {self.url}   try: {self.curl}"


def print_line(serving: Serving) -> None:
    """One line on stdout, when the server takes connections."""
    print(serving, flush=True)


def serve(
    model_path: Path | str,
    config: ServeConfig | None = None,
    *,
    device: str = "auto",
    announce: Callable[[Serving], None] = print_line,
) -> None:
    """Load a model and serve it until Ctrl-C or SIGTERM, which comes once more when all is closed, as if uvicorn were
    not there: Ctrl-C raises KeyboardInterrupt, SIGTERM ends the process unless it is handled.

    model_path: anything `headwater.engine.load_model` loads. `announce` is called once, when the server takes
    connections. Raises UserError for an address in use or open without a key, InputError as `load_model`.
    """
    config = config or ServeConfig()
    key = read_api_key(config)
    with _bound(config) as listener:
        folder = Path(model_path)
        engine = Engine.load(folder, device=device, max_rows=config.max_concurrent)
        name = config.model_name or folder.resolve().name
        service = Service(engine, config, model_name=name, template=ChatTemplate.of_folder(engine.tokenizer.path))
        serving = _serving(listener, config, name, key is not None)
        server = _Server(
            uvicorn.Config(
                create_app(service, key),
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(config.shutdown_grace)),
            ),
            lambda: announce(serving),
        )
        server.run(sockets=[listener])
        if not server.started:
            raise UserError("the server did not start; its log above says why", where=serving.url)


class _Server(uvicorn.Server):
    """Says when it takes connections."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


@contextmanager
def _bound(config: ServeConfig) -> Any:
    """A socket bound to the configured address, before the model is loaded: a wrong port shows at once."""
    where = f"{config.host}:{config.port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(
            f"the address cannot be found: {error.strerror}",
            where=where,
            mend="use 127.0.0.1, or an address of this machine",
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            mend = {
                errno.EADDRINUSE: "stop the other program, or give another port (0 takes a free one)",
                errno.EACCES: "ports below 1024 belong to root: give a higher one",
            }.get(error.errno or 0, "use 127.0.0.1, or an address of this machine")
            raise UserError(f"cannot listen there: {error.strerror}", where=where, mend=mend) from error
        yield listener
    finally:
        listener.close()


def _serving(listener: socket.socket, config: ServeConfig, name: str, authenticated: bool) -> Serving:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{shown}:{port}/v1"
    body = json.dumps({"model": name, "prompt": "Once upon a time", "max_tokens": 64})
    stored = f"$(head -n 1 {shlex.quote(config.api_key_file)})" if config.api_key_file else f"${config.api_key_env}"
    key = f' -H "Authorization: Bearer {stored}"' if authenticated else ""
    curl = f"curl {url}/completions -H 'Content-Type: application/json'{key} -d '{body}'"
    return Serving(url, name, curl, authenticated)
