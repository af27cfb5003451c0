"""Whatever a body holds, the answer is one of the API's: never a failure of ours."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.serve.protocol import ChatRequest, CompletionRequest

from .tiny import Server

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 700) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("5"), inner, max_size=2),
    max_leaves=4,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "x"]), "content": st.text(max_size=9)}
    )
    | VALUES,
    max_size=3,
)
PROMPTS = st.text(max_size=9) | st.lists(st.integers(0, 639), max_size=4) | st.lists(st.text(max_size=4), max_size=2)


def bodies(fields: list[str], **given_fields: st.SearchStrategy) -> st.SearchStrategy:
    """Mostly right, and one or two fields of any content."""
    right = {"model": st.just("chain"), "max_tokens": st.integers(0, 3), **given_fields}
    wrong = st.dictionaries(st.sampled_from(fields) | st.text(max_size=6), VALUES, max_size=2)
    return st.tuples(st.fixed_dictionaries(right), wrong).map(lambda parts: {**parts[0], **parts[1]})


COMPLETIONS = bodies([name for name in CompletionRequest.model_fields if name != "model"], prompt=PROMPTS)
CHATS = bodies([name for name in ChatRequest.model_fields if name != "model"], messages=MESSAGES)


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(headers={"content-type": "application/json"}) as client:
        yield client


@settings(max_examples=60)
@given(st.tuples(st.just("completions"), COMPLETIONS) | st.tuples(st.just("chat/completions"), CHATS))
def test_every_body_gets_an_answer_or_a_reason(chain: Server, http: httpx.Client, request: tuple[str, dict]) -> None:
    path, body = request
    response = http.post(f"{chain.url}/{path}", content=orjson.dumps(body))
    assert response.status_code in (200, 400), (body, response.text)
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["message"]
        assert error["type"] == "invalid_request_error"
    elif body.get("stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in response.text
    else:
        assert response.json()["choices"]


def test_a_web_page_cannot_ask_without_saying_json(chain: Server) -> None:
    """A page of any site may post text to this machine without asking first, but not JSON."""
    body = orjson.dumps({"model": "chain", "prompt": "the"})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = httpx.post(f"{chain.url}/completions", content=body, headers={"content-type": kind})
        assert response.status_code == 400
