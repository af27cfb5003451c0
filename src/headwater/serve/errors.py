"""Errors as the OpenAI API states them: an HTTP status and `{"error": {message, type, param, code}}`.

raise bad_request("temperature must be at least 0", param="temperature")
"""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """What a client is told. `status` is the HTTP status; `param` the request's field, if it is about one."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(self.retry_after_seconds)
        return headers


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, "invalid_request_error", param=param, code=code)


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "Incorrect or missing API key. Send it as the header 'Authorization: Bearer KEY'.",
        "authentication_error",
        code="invalid_api_key",
    )


def model_not_found(asked: str, served: str) -> ApiError:
    message = f"The model '{asked}' does not exist here; this server has '{served}'."
    return ApiError(404, message, "invalid_request_error", param="model", code="model_not_found")


def too_large(limit_bytes: int) -> ApiError:
    message = f"The request body is larger than {limit_bytes:,} bytes."
    return ApiError(413, message, "invalid_request_error", code="request_too_large")


def too_many(waiting: int) -> ApiError:
    message = f"{waiting} requests are waiting already; try again soon."
    return ApiError(429, message, "rate_limit_error", code="queue_full", retry_after_seconds=1)


def timed_out(seconds: float) -> ApiError:
    message = f"The request took longer than the limit of {seconds:g} seconds and was stopped."
    return ApiError(503, message, "server_error", code="timeout", retry_after_seconds=5)


def shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down.", "server_error", code="shutting_down", retry_after_seconds=5)


def internal() -> ApiError:
    return ApiError(500, "The server failed; its log says why.", "server_error", code="internal_error")
