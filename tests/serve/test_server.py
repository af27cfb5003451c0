"""What a server refuses, how it copes with too much, and how it ends: real processes over HTTP."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI

from headwater.core.errors import UserError
from headwater.serve import ServeConfig, serve

from .tiny import CHAIN, Server, running

KEY = {"Authorization": "Bearer sk-test"}


def metric(server: Server, name: str) -> float:
    text = httpx.get(f"{server.root}/metrics").text
    return sum(float(value) for value in re.findall(rf"^headwater_{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))


def eventually(condition, seconds: float = 8.0) -> bool:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def post(
    server: Server, path: str = "/completions", headers: dict[str, str] | None = None, **body: object
) -> httpx.Response:
    return httpx.post(server.url + path, json={"model": "tiny", **body}, headers=KEY if headers is None else headers)


def error_of(response: httpx.Response) -> dict[str, str]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


def test_the_line_it_prints_holds_a_command_that_works(chain: Server) -> None:
    command = chain.line.split("try: ")[1]
    done = subprocess.run(["bash", "-c", f"{command.strip()} -s"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["object"] == "text_completion"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer sk-tes"}, {"Authorization": "sk-test"}])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/openapi.json", "/nowhere"])
def test_without_the_key_nothing_is_told(strict: Server, headers: dict[str, str], path: str) -> None:
    response = httpx.request("POST" if "completions" in path else "GET", strict.root + path, headers=headers)
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert "sk-test" not in response.text


def test_the_key_does_not_stand_in_the_line_it_prints(strict: Server) -> None:
    assert "sk-test" not in strict.line
    assert "$HEADWATER_API_KEY" in strict.line


def test_health_and_metrics_need_no_key(strict: Server) -> None:
    assert httpx.get(f"{strict.root}/health").json() == {"status": "ok"}
    assert httpx.get(f"{strict.root}/metrics").status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "a", "temprature": 1}, "temprature", "Unrecognized request argument: temprature"),
        ({"prompt": "a", "temperature": 3}, "temperature", "less than or equal to 2"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "valid number"),
        ({"prompt": "a", "top_p": 0}, "top_p", "greater than 0"),
        ({"prompt": "a", "n": 3}, "n", "at most 2"),
        ({"prompt": "a", "max_tokens": 8001}, "max_tokens", "at most 8,000"),
        ({"prompt": "a", "max_tokens": 0}, None, "only with echo"),
        ({"prompt": "a", "stop": ""}, "stop[0]", "at least 1 character"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", "at most 16"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"prompt": "a", "best_of": 2}, None, "best_of"),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias", "99999"),
        ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, None, "only allowed when stream"),
        ({"prompt": []}, None, "empty list"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": [5, 70000]}, "prompt", "70000"),
        ({"prompt": "word " * 400}, "prompt", "at most 300"),
        ({"prompt": {"a": 1}}, "prompt", "valid"),
    ],
)
def test_a_bad_completion_request_is_told_what_is_wrong(
    strict: Server, body: dict[str, object], param: str | None, words: str
) -> None:
    response = post(strict, **body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert error["param"] is param if param is None else error["param"].startswith(param)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "messages is required"),
        ({"messages": []}, "at least 1"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "Unknown role 'robot'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, "tools"),
        (
            {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "needs logprobs"),
    ],
)
def test_a_bad_chat_request_is_told_what_is_wrong(strict: Server, body: dict[str, object], words: str) -> None:
    response = post(strict, "/chat/completions", **body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert words in error["message"], error


def test_a_lone_surrogate_is_refused(strict: Server) -> None:
    body = '{"model": "tiny", "prompt": "\\ud800"}'
    response = httpx.post(
        f"{strict.url}/completions", content=body, headers={**KEY, "content-type": "application/json"}
    )
    assert response.status_code == 400
    assert "surrogate" in error_of(response)["message"]


@pytest.mark.parametrize("content", [b"{", b"", b"[1]", b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(strict: Server, content: bytes) -> None:
    response = httpx.post(
        f"{strict.url}/completions", content=content, headers={**KEY, "content-type": "application/json"}
    )
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b'{"model": "tiny", "prompt": "a"}', "application/x-www-form-urlencoded", "Content-Type: application/json."),
        (b"[1]", "application/json", "The body must be a JSON object."),
    ],
)
def test_a_body_of_another_kind_is_told_what_to_send(strict: Server, content: bytes, kind: str, words: str) -> None:
    response = httpx.post(f"{strict.url}/completions", content=content, headers={**KEY, "content-type": kind})
    assert response.status_code == 400
    assert words in error_of(response)["message"]


def test_paths_and_methods_that_do_not_exist(chain: Server) -> None:
    assert error_of(httpx.get(f"{chain.url}/embeddings"))["message"] == "There is no path /v1/embeddings here."
    response = httpx.get(f"{chain.url}/completions")
    assert response.status_code == 405
    error_of(response)


def test_what_does_not_fit_the_context_is_refused_with_openais_code(chain: Server) -> None:
    client = OpenAI(base_url=chain.url, api_key="unused", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="context of 8,192") as caught:
        client.completions.create(model="chain", prompt="the stream " * 1600, max_tokens=4000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_refused_whether_its_size_is_declared_or_not(strict: Server, declared: bool) -> None:
    content = json.dumps({"model": "tiny", "prompt": "x" * 30_000}).encode()
    sent = content if declared else (content[i : i + 5000] for i in range(0, len(content), 5000))
    response = httpx.post(
        f"{strict.url}/completions", content=sent, headers={**KEY, "content-type": "application/json"}
    )
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


def test_too_many_requests_get_429_and_slow_ones_503(strict: Server) -> None:
    """Two completions run, one request waits, the fourth is refused; after three seconds all are stopped."""
    endless = {"prompt": "水", "max_tokens": 8000, "ignore_eos": True}
    with ExitStack() as stack:
        streams = [
            stack.enter_context(
                httpx.stream(
                    "POST",
                    f"{strict.url}/completions",
                    json={"model": "tiny", **endless, "stream": True},
                    headers=KEY,
                    timeout=30,
                )
            )
            for _ in range(2)
        ]
        lines = [stream.iter_lines() for stream in streams]
        assert all(next(line).startswith("data: ") for line in lines)
        waiting: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: waiting.append(post(strict, prompt="水", max_tokens=1)))
        thread.start()
        assert eventually(lambda: metric(strict, "num_requests_waiting") == 1, 2)
        refused = post(strict, prompt="水", max_tokens=1)
        assert refused.status_code == 429
        assert error_of(refused)["type"] == "rate_limit_error"
        assert refused.headers["retry-after"] == "1"
        for line in lines:
            events = [text.removeprefix("data: ") for text in line if text]
            assert events[-1] == "[DONE]"
            assert json.loads(events[-2])["error"]["code"] == "timeout"
        thread.join(20)
        assert waiting[0].status_code in (200, 503)
    assert eventually(lambda: metric(strict, "num_requests_running") == 0)


def test_a_slow_request_without_stream_is_answered_503(strict: Server) -> None:
    response = httpx.post(
        f"{strict.url}/completions",
        json={"model": "tiny", "prompt": "水", "max_tokens": 8000, "ignore_eos": True},
        headers=KEY,
        timeout=30,
    )
    assert response.status_code == 503
    assert error_of(response)["code"] == "timeout"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_the_work(chain: Server, stream: bool) -> None:
    before = metric(chain, "requests_cancelled_total")
    body = json.dumps(
        {"model": "chain", "prompt": "the", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    ).encode()
    host, port = chain.root.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
        connection.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        assert eventually(lambda: metric(chain, "num_requests_running") == 1)
    assert eventually(lambda: metric(chain, "num_requests_running") == 0, 4)
    assert metric(chain, "requests_cancelled_total") == before + 1


def test_one_of_a_batch_that_leaves_does_not_disturb_the_others(chain: Server) -> None:
    client = OpenAI(base_url=chain.url, api_key="unused", max_retries=0)
    request = {"model": "chain", "prompt": "the", "stream": True, "extra_body": {"ignore_eos": True}}
    leaver = client.completions.create(max_tokens=4000, **request)  # type: ignore[call-overload]
    stayer = client.completions.create(max_tokens=13 + 15 * 40, **request)  # type: ignore[call-overload]
    next(iter(leaver))
    leaver.close()
    assert "".join(chunk.choices[0].text for chunk in stayer) == (CHAIN * 41)[3:]


def test_a_short_request_does_not_wait_for_a_long_one(chain: Server) -> None:
    client = OpenAI(base_url=chain.url, api_key="unused", max_retries=0)
    long = client.completions.create(
        model="chain", prompt="the", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(long))
    short = client.completions.create(model="chain", prompt="the", max_tokens=4)
    assert short.choices[0].text == " stream"
    assert metric(chain, "num_requests_running") == 1
    long.close()


def test_metrics_count_what_was_done(chain: Server) -> None:
    names = (
        "generation_tokens_total",
        "prompt_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_count",
    )
    before = [metric(chain, name) for name in names]
    OpenAI(base_url=chain.url, api_key="unused").completions.create(model="chain", prompt="the", max_tokens=7)
    assert [metric(chain, name) - old for name, old in zip(names, before, strict=True)] == [7, 3, 1, 1]  # with bos
    text = httpx.get(f"{chain.root}/metrics").text
    assert 'headwater_http_responses_total{path="/v1/completions",status="200"}' in text


def test_sigterm_lets_running_requests_end_and_exits_with_zero(chain_folder: Path) -> None:
    with running(chain_folder) as server:
        client = OpenAI(base_url=server.url, api_key="unused", max_retries=0)
        stream = client.completions.create(
            model="chain", prompt="the", max_tokens=13 + 15 * 60, stream=True, extra_body={"ignore_eos": True}
        )
        text = next(iter(stream)).choices[0].text
        server.process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].text for chunk in stream)
        assert text == (CHAIN * 61)[3:]
        assert server.process.wait(20) == 0


def test_a_port_in_use_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UserError, match="cannot listen there") as caught:
            serve(tmp_path / "missing", ServeConfig(port=taken.getsockname()[1]))
    assert "another port" in caught.value.mend


def test_an_open_address_without_a_key_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_API_KEY", raising=False)
    with pytest.raises(UserError, match="no API key is set"):
        serve(tmp_path / "missing", ServeConfig(host="0.0.0.0", port=0))
