"""What `/metrics` shows, in Prometheus' text format.

Names are vLLM's with the prefix `headwater_` in place of `vllm:`, where vLLM has the figure, so that a dashboard
made for one needs one replacement to show the other. Buckets are vLLM's too.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_WHOLE = (
    0.01,
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    600.0,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


class ServerMetrics:
    """One registry a server, so that several servers in one process do not mix."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        label = ("model_name",)

        def gauge(name: str, help_text: str) -> Gauge:
            return Gauge(f"headwater_{name}", help_text, label, registry=self.registry).labels(model_name)

        def counter(name: str, help_text: str) -> Counter:
            return Counter(f"headwater_{name}", help_text, label, registry=self.registry).labels(model_name)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"headwater_{name}", help_text, label, registry=self.registry, buckets=buckets).labels(
                model_name
            )

        self.running = gauge("num_requests_running", "Requests being generated now.")
        self.waiting = gauge("num_requests_waiting", "Requests waiting for their turn.")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens processed.")
        self.generation_tokens = counter("generation_tokens", "Tokens generated.")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first generated token.", _FIRST_TOKEN
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of one choice.", _BETWEEN
        )
        self.latency = histogram("e2e_request_latency_seconds", "From a request's arrival to its end.", _WHOLE)
        self.queue_time = histogram("request_queue_time_seconds", "From a request's arrival to its start.", _WHOLE)
        self.request_prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens generated for a request.", _TOKENS
        )
        self._model_name = model_name
        self._success = Counter(
            "headwater_request_success",
            "Requests answered, by why their first choice ended.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._responses = Counter(
            "headwater_http_responses",
            "HTTP responses, by path and status; unknown paths count as 'other'.",
            ("path", "status"),
            registry=self.registry,
        )
        self._cancelled = counter("requests_cancelled", "Requests stopped because their client went away.")

    def succeeded(self, reason: str) -> None:
        self._success.labels(self._model_name, reason).inc()

    def responded(self, path: str, status: int) -> None:
        self._responses.labels(path, str(status)).inc()

    def cancelled(self) -> None:
        self._cancelled.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
