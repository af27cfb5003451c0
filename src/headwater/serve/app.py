"""The web application: paths, errors in OpenAI's form, start and end of the worker.

    app = create_app(Service(engine, config, model_name="tiny", template=ChatTemplate()), api_key=None)

Paths: GET /v1/models, GET /v1/models/{model}, POST /v1/completions, POST /v1/chat/completions, GET /health,
GET /metrics, GET /openapi.json.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from headwater import __version__
from headwater.serve.asgi import Guarded, JsonResponse, Limited, Measured, error_response
from headwater.serve.errors import ApiError, bad_request, internal, model_not_found
from headwater.serve.metrics import CONTENT_TYPE
from headwater.serve.protocol import ChatRequest, CompletionRequest
from headwater.serve.service import Service

log = logging.getLogger("headwater.serve")

PATHS = frozenset({"/v1/models", "/v1/completions", "/v1/chat/completions", "/health", "/metrics", "/openapi.json"})


def create_app(service: Service, api_key: str | None) -> ASGIApp:
    """The application; its lifespan starts and stops the worker."""
    config = service.config

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        service.worker.stop()

    app = FastAPI(title="Headwater", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_errors(app)

    @app.get("/v1/models")
    async def models() -> JsonResponse:
        """The one model there is."""
        return JsonResponse({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> JsonResponse:
        """The same, by name."""
        if model != service.model_name:
            raise model_not_found(model, service.model_name)
        return JsonResponse(_model(service))

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a prompt."""
        return await service.completions(body, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer messages."""
        return await service.chat(body, request)

    @app.get("/health")
    async def health() -> JsonResponse:
        """200 while the model can answer, else 503."""
        alive = service.worker.alive
        return JsonResponse({"status": "ok" if alive else "stopped"}, status_code=200 if alive else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    limited = Limited(app, config.max_body_bytes, config.timeout)
    return Measured(Guarded(limited, api_key), service.metrics, PATHS)


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "headwater",
        "max_model_len": service.engine.context,
    }


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JsonResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JsonResponse:
        return error_response(_explain(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JsonResponse:
        message = {
            404: f"There is no path {request.url.path} here.",
            405: f"{request.url.path} does not take {request.method}.",
        }.get(error.status_code, str(error.detail))
        return error_response(ApiError(error.status_code, message, "invalid_request_error"))

    @app.exception_handler(Exception)
    async def failure(_: Request, error: Exception) -> JsonResponse:
        log.exception("a request failed", exc_info=error)
        return error_response(internal())


def _explain(problem: Any) -> ApiError:
    """Pydantic's first complaint in OpenAI's words; `param` is the field, with indexes: messages[0].role."""
    place, kind, message = list(problem["loc"])[1:], problem["type"], problem["msg"]
    if kind == "json_invalid":
        return bad_request(f"The body is not valid JSON: {problem.get('ctx', {}).get('error', message)}.")
    # A union names the alternative it tried in the place: not a field of the request.
    fields = [part for part in place if isinstance(part, int) or str(part).isidentifier()]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fields).lstrip(".") or None
    if kind == "extra_forbidden":
        return bad_request(f"Unrecognized request argument: {param}.", param=param, code="unknown_parameter")
    if kind == "missing":
        return bad_request(f"The field {param} is required." if param else "The body is empty.", param=param)
    if kind == "model_attributes_type" and not place:
        header = " sent with Content-Type: application/json" if isinstance(problem.get("input"), bytes) else ""
        return bad_request(f"The body must be a JSON object{header}.")
    text = message.removeprefix("Value error, ")
    return bad_request(f"{param}: {text}" if param else text, param=param)
