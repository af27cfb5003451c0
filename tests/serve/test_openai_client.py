"""The official `openai` client against a real server process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from headwater.engine import load_model
from headwater.serve.prompt_scores import prompt_scores
from headwater.tokenizer import Tokenizer

from .tiny import CHAIN, Server


@pytest.fixture(scope="module")
def client(chain: Server) -> OpenAI:
    return OpenAI(base_url=chain.url, api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def dice(strict: Server) -> OpenAI:
    return OpenAI(base_url=strict.url, api_key="sk-test", max_retries=0)


def test_the_model_is_listed_and_found_by_name(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chain"]
    assert client.models.retrieve("chain").owned_by == "headwater"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-x")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="'gpt-x' does not exist"):
        client.completions.create(model="gpt-x", prompt="a")


def test_a_completion_has_text_finish_reason_and_usage(client: OpenAI) -> None:
    answer = client.completions.create(model="chain", prompt="the", max_tokens=13)
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == (CHAIN[3:], "length")
    assert answer.usage is not None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 13, 16)  # bos among them
    assert choice.logprobs is None


def test_sixteen_tokens_are_the_default(client: OpenAI) -> None:
    answer = client.completions.create(model="chain", prompt="the")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_a_stream_gives_the_same_text_piece_by_piece(client: OpenAI) -> None:
    whole = client.completions.create(model="chain", prompt="the", max_tokens=43)
    chunks = list(client.completions.create(model="chain", prompt="the", max_tokens=43, stream=True))
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "".join(texts) == whole.choices[0].text
    assert len([text for text in texts if text]) > 20
    assert all("\ufffd" not in text for text in texts), "an emoji of four tokens was sent in parts"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "length"]
    assert {chunk.usage for chunk in chunks} == {None}


def test_a_character_cut_by_the_token_limit_is_left_out(client: OpenAI) -> None:
    tokens_to_half_an_emoji = 7
    answer = client.completions.create(model="chain", prompt="the", max_tokens=tokens_to_half_an_emoji)
    assert answer.choices[0].text == " stream源头"


def test_usage_ends_a_stream_that_asks_for_it(client: OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model="chain", prompt="the", max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("stop", ["eam源", ["never", "eam源"], "m源头🌊"])
def test_a_stop_string_across_tokens_ends_the_text_before_it(client: OpenAI, stop: str | list[str]) -> None:
    expected = " stream"[: -3 if isinstance(stop, list) or stop.startswith("e") else -1]
    answer = client.completions.create(model="chain", prompt="the", max_tokens=60, stop=stop)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop")
    stream = client.completions.create(model="chain", prompt="the", max_tokens=60, stop=stop, stream=True)
    sent = ""
    for chunk in stream:
        sent += chunk.choices[0].text
        assert expected.startswith(sent)
    assert sent == expected


def test_several_prompts_and_samples_are_numbered_prompt_by_prompt(client: OpenAI) -> None:
    answer = client.completions.create(model="chain", prompt=["the", "源头"], n=2, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [" stream"] * 2 + ["🌊"] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 16)  # with bos
    streamed: dict[int, str] = {}
    for chunk in client.completions.create(model="chain", prompt=["the", "源头"], n=2, max_tokens=4, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
    assert streamed == {choice.index: choice.text for choice in answer.choices}


def test_token_ids_are_prompts_too(client: OpenAI, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the")
    one = client.completions.create(model="chain", prompt=ids, max_tokens=4, echo=True)
    two = client.completions.create(model="chain", prompt=[ids, ids], max_tokens=4)
    assert one.choices[0].text == "the stream"
    assert [choice.text for choice in two.choices] == [" stream", " stream"]


def test_a_seed_repeats_a_text_whoever_else_is_served(dice: OpenAI) -> None:
    def text(seed: int | None) -> str:
        return dice.completions.create(model="tiny", prompt="水", max_tokens=20, seed=seed).choices[0].text

    assert text(7) == text(7)
    assert len({text(7), text(8), text(None), text(None)}) == 4
    samples = dice.completions.create(model="tiny", prompt="水", max_tokens=20, seed=7, n=2)
    assert samples.choices[0].text == text(7)
    assert samples.choices[1].text != text(7)


def test_temperature_zero_is_greedy(dice: OpenAI) -> None:
    answers = [dice.completions.create(model="tiny", prompt="水", max_tokens=12, temperature=0) for _ in range(2)]
    assert answers[0].choices[0].text == answers[1].choices[0].text


def test_a_bias_forbids_and_forces_tokens(client: OpenAI, tokenizer: Tokenizer) -> None:
    after = tokenizer.encode(" s")[0]
    forced = tokenizer.encode("源头")[0]
    answer = client.completions.create(
        model="chain", prompt="the", max_tokens=1, logit_bias={str(after): -100, str(forced): 60}
    )
    assert answer.choices[0].text == "源头"


def test_log_probabilities_of_generated_tokens(dice: OpenAI) -> None:
    answer = dice.completions.create(model="tiny", prompt="水滴", max_tokens=6, seed=3, logprobs=2)
    given = answer.choices[0].logprobs
    assert given is not None
    assert given.tokens is not None
    assert given.token_logprobs is not None
    assert given.top_logprobs is not None
    assert given.text_offset is not None
    assert len(given.tokens) == len(given.token_logprobs) == len(given.top_logprobs) == len(given.text_offset) == 6
    for token, value, top in zip(given.tokens, given.token_logprobs, given.top_logprobs, strict=True):
        assert top[token] == pytest.approx(value)
        assert 2 <= len(top) <= 3
    text = answer.choices[0].text
    for token, offset in zip(given.tokens, given.text_offset, strict=True):
        assert text[offset:].startswith(token) or token.startswith(("bytes:", "<")), (text, token, offset)


def test_echoed_prompts_are_scored_as_lm_evaluation_harness_needs_them(
    dice: OpenAI, random_folder: Path, tokenizer: Tokenizer
) -> None:
    context, continuation = tokenizer.encode("The river runs 千里"), tokenizer.encode("之行 to the sea🌊")
    answer = dice.completions.create(
        model="tiny", prompt=[[*context, *continuation]], max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234
    )
    given = answer.choices[0].logprobs
    assert given is not None
    assert given.token_logprobs is not None
    assert given.token_logprobs[0] is None
    assert len(given.token_logprobs) == len(context) + len(continuation) + 1
    model, _ = load_model(random_folder, device="cpu")
    expected = [score.logprob for score in prompt_scores(model, [[*context, *continuation]], 0)[0]]
    assert given.token_logprobs[len(context) : -1] == pytest.approx(expected[len(context) :], abs=1e-4)
    assert answer.choices[0].text.startswith("The river runs 千里之行 to the sea🌊")
    assert given.text_offset is not None
    assert given.text_offset[len(context)] == len("The river runs 千里")


def test_a_prompt_alone_is_scored_with_max_tokens_zero(dice: OpenAI) -> None:
    answer = dice.completions.create(model="tiny", prompt=["水滴石穿", "sea"], max_tokens=0, logprobs=0, echo=True)
    for choice, text in zip(answer.choices, ("水滴石穿", "sea"), strict=True):
        assert choice.text == text
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert all(value < 0 for value in choice.logprobs.token_logprobs)  # the first is predicted from bos
        assert choice.logprobs.top_logprobs is not None
        assert [len(top) for top in choice.logprobs.top_logprobs] == [1] * len(choice.logprobs.token_logprobs)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_the_first_of_given_token_ids_has_no_log_probability(dice: OpenAI) -> None:
    answer = dice.completions.create(model="tiny", prompt=[300, 301], max_tokens=0, logprobs=0, echo=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    first, second = logprobs.token_logprobs
    assert first is None
    assert second < 0


def test_a_streamed_echo_with_log_probabilities_adds_up(dice: OpenAI) -> None:
    request = {"model": "tiny", "prompt": "水滴", "max_tokens": 5, "seed": 5, "logprobs": 1, "echo": True}
    whole = dice.completions.create(**request).choices[0]  # type: ignore[call-overload]
    text, tokens, offsets = "", [], []
    for chunk in dice.completions.create(**request, stream=True):  # type: ignore[call-overload]
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs is not None:
            tokens += chunk.choices[0].logprobs.tokens
            offsets += chunk.choices[0].logprobs.text_offset
    assert (text, tokens, offsets) == (whole.text, whole.logprobs.tokens, whole.logprobs.text_offset)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the"}]


def test_chat_answers_as_the_assistant(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="chain", messages=MESSAGES, max_completion_tokens=4)  # type: ignore[arg-type]
    choice = answer.choices[0]
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_chat_continues_an_answer_that_is_given_in_part(client: OpenAI) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "the stream"}]
    answer = client.chat.completions.create(model="chain", messages=turns, max_tokens=5, temperature=0)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "源头🌊"


def test_chat_content_may_come_in_parts(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": " stream"}]
    turns = [{"role": "assistant", "content": parts}]
    answer = client.chat.completions.create(model="chain", messages=turns, max_tokens=1)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "源头"


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason(client: OpenAI) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "the stream"}]
    chunks = list(
        client.chat.completions.create(
            model="chain",
            messages=turns,  # type: ignore[arg-type]
            max_tokens=7,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = {0: "", 1: ""}
    for index in texts:
        deltas = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert deltas[0].delta.role == "assistant"
        assert deltas[-1].finish_reason == "length"
        texts[index] = "".join(choice.delta.content or "" for choice in deltas)
    assert texts == {0: "源头🌊 flows", 1: "源头🌊 flows"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 14


@pytest.mark.parametrize("top", [None, 0, 3])
def test_chat_log_probabilities_have_their_own_schema(dice: OpenAI, top: int | None) -> None:
    extra = {} if top is None else {"top_logprobs": top}
    request = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "seed": 9, "logprobs": True, **extra}
    answer = dice.chat.completions.create(**request)  # type: ignore[call-overload]
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    for entry in content:
        assert len(entry.top_logprobs) == (top or 0)
        assert entry.logprob < 0
    data = b"".join(bytes(entry.bytes) for entry in content)
    assert data.decode(errors="replace").startswith(answer.choices[0].message.content)
    streamed = [
        entry
        for chunk in dice.chat.completions.create(**request, stream=True)  # type: ignore[call-overload]
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in content]


def test_many_asynchronous_requests_are_answered_each_with_its_own(chain: Server) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=chain.url, api_key="unused", max_retries=0) as client:

            async def whole(length: int) -> str:
                answer = await client.completions.create(model="chain", prompt="the", max_tokens=length)
                return answer.choices[0].text

            async def stream(length: int) -> str:
                chunks = await client.completions.create(model="chain", prompt="the", max_tokens=length, stream=True)
                return "".join([chunk.choices[0].text async for chunk in chunks])

            return await asyncio.gather(*(task(4 + 15 * turns) for turns in range(8) for task in (whole, stream)))

    texts = asyncio.run(ask())
    assert texts == [(CHAIN * 9)[3 : 3 + 7 + len(CHAIN) * turns] for turns in range(8) for _ in range(2)]
