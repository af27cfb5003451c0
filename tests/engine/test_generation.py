"""Generation: equal to transformers greedily, the same text alone and in any company, streams that lose nothing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from headwater.core.errors import InputError
from headwater.engine import Engine, SamplingParams, generate
from headwater.engine.generation import SHARED_TOKENS, _shared_tokens
from headwater.tokenizer import Tokenizer
from tests.engine.conftest import export, make_model

PROMPTS = ["The river", "水从高处往低处流。春天", "def flow(", "a", "The river rises in the hills and runs down to"]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "num_key_value_heads": 4}, {"tie_word_embeddings": True}])
def test_greedy_tokens_equal_those_of_transformers(tmp_path: Path, tokenizer: Tokenizer, changes: dict) -> None:
    folder = export(make_model(tokenizer, seed=1, **changes), tokenizer, tmp_path)
    engine = Engine.load(folder, device="cpu")
    ours = engine.generate(PROMPTS, GREEDY)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, completion in zip(PROMPTS, ours, strict=True):
        ids = torch.tensor([engine.encode(prompt)])
        expected = theirs.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=3)
        assert list(completion.token_ids) == expected[0, ids.shape[1] :].tolist()
        assert completion.prompt_tokens == ids.shape[1]
        assert completion.finish == "length"


def test_a_text_is_the_same_alone_and_in_any_company(engine: Engine) -> None:
    params = [
        SamplingParams(max_tokens=30, temperature=0),
        SamplingParams(max_tokens=7, temperature=1.2, top_p=0.9, seed=5, n=2),
        SamplingParams(max_tokens=40, temperature=0.9, top_k=20, seed=5),
        SamplingParams(max_tokens=12, min_p=0.05, repetition_penalty=1.3, seed=-1),
        SamplingParams(max_tokens=3, seed=2),
    ]
    together = engine.generate(PROMPTS, params)
    assert [(c.prompt, c.sample) for c in together] == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]
    for number, (prompt, own) in enumerate(zip(PROMPTS, params, strict=True)):
        alone = engine.generate([prompt], own)
        assert [c.token_ids for c in alone] == [c.token_ids for c in together if c.prompt == number]
    backwards = engine.generate(PROMPTS[::-1], params[::-1])
    assert sorted(c.token_ids for c in backwards) == sorted(c.token_ids for c in together)
    narrow = Engine(engine.model, engine.tokenizer, max_rows=2).generate(PROMPTS, params)
    assert [c.token_ids for c in narrow] == [c.token_ids for c in together]


def test_samples_of_a_prompt_differ_and_a_seed_repeats_them(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.5, n=4, seed=3)
    first, again = engine.generate(["The"], params), engine.generate(["The"], params)
    assert first == again
    assert len({c.text for c in first}) == 4
    free = SamplingParams(max_tokens=12, temperature=1.5)
    assert engine.generate(["The"], free) != engine.generate(["The"], free)


def test_a_stream_gives_the_text_of_the_completion_in_whole_characters(engine: Engine) -> None:
    params = SamplingParams(max_tokens=60, temperature=3.0, seed=11, n=3, ignore_eos=True)
    whole = engine.generate(PROMPTS[:2], params)
    texts: dict[tuple[int, int], str] = {}
    tokens: dict[tuple[int, int], tuple[int, ...]] = {}
    for piece in engine.stream(PROMPTS[:2], params):
        key = (piece.prompt, piece.sample)
        texts[key] = texts.get(key, "") + piece.text
        tokens[key] = tokens.get(key, ()) + piece.token_ids
        assert piece.text or piece.finish
    for completion in whole:
        key = (completion.prompt, completion.sample)
        assert texts[key] == completion.text
        assert tokens[key] == completion.token_ids
        spoken = [t for t in completion.token_ids if t not in engine.tokenizer.special_ids]
        expected = b"".join(engine.tokenizer.token_bytes(t) for t in spoken).decode(errors="replace")
        assert expected.startswith(completion.text)
        assert len(expected) - len(completion.text) <= 1  # part of a character at the very end


def test_stop_strings_across_tokens_end_the_text(engine: Engine) -> None:
    free = engine.generate(["The river"], GREEDY)[0]
    assert len(free.text) > 8
    stop = free.text[3:8]
    stopped = engine.generate(["The river"], SamplingParams(max_tokens=24, temperature=0, stop=(stop, "never there")))[
        0
    ]
    assert stopped.text == free.text[: free.text.find(stop)]
    assert stopped.finish == "stop"
    assert stopped.token_ids == free.token_ids[: len(stopped.token_ids)]
    assert len(stopped.token_ids) < len(free.token_ids)


def test_end_of_text_and_stop_tokens_end_the_text_unseen(engine: Engine) -> None:
    eos = engine.tokenizer.eos_id
    forced = SamplingParams(max_tokens=9, temperature=0, logit_bias={eos: 100.0})
    ended = engine.generate(["The"], forced)[0]
    assert (ended.text, ended.token_ids, ended.finish) == ("", (eos,), "stop")
    on = engine.generate(
        ["The"], SamplingParams(max_tokens=9, temperature=0, logit_bias={eos: 100.0}, ignore_eos=True)
    )[0]
    assert (on.text, on.finish, len(on.token_ids)) == ("", "length", 9)
    free = engine.generate(["The"], GREEDY)[0]
    token = free.token_ids[4]
    stopped = engine.generate(["The"], SamplingParams(temperature=0, stop_token_ids=(token,), max_tokens=24))[0]
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(token) + 1]
    assert stopped.finish == "stop"


def test_generation_ends_at_the_context(engine: Engine) -> None:
    ids = [40 + i for i in range(120)]
    completion = engine.generate([ids], SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))[0]
    assert (len(completion.token_ids), completion.finish) == (8, "length")
    with pytest.raises(InputError, match="128 tokens and the model's context 128"):
        engine.generate([[5] * 128], GREEDY)


def test_long_prompts_go_through_the_model_in_parts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[40 + i % 300 for i in range(n)] for n in (90, 3, 41)]
    at_once = engine.generate(prompts, GREEDY)
    monkeypatch.setattr("headwater.engine.generation.PREFILL_TOKENS", 60)
    assert engine.generate(prompts, GREEDY) == at_once


def test_a_beginning_that_all_prompts_share_goes_through_the_model_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = "The river rises in the hills. 水从高处往低处流。 " * 3
    prompts = [examples + end for end in ("The", "两岸的人都来看", "def flow(river, sea")]
    greedy = SamplingParams(max_tokens=8, temperature=0)
    alone = [engine.generate([prompt], greedy)[0].token_ids for prompt in prompts]
    seen: list[int] = []
    hook = engine.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].numel()))
    try:
        for part in (8192, 20):
            monkeypatch.setattr("headwater.engine.generation.PREFILL_TOKENS", part)
            seen.clear()
            together = engine.generate(prompts, greedy)
            assert [done.token_ids for done in together] == alone
            ids = [engine.encode(prompt) for prompt in prompts]
            shared, longest = _shared_tokens(ids), max(map(len, ids))
            assert shared > longest / 2
            assert sum(seen) <= shared + 3 * (longest - shared) + 3 * 8
    finally:
        hook.remove()


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=5))
def test_what_is_shared_is_the_longest_common_beginning(ends: list[list[int]]) -> None:
    prompts = [[7] * SHARED_TOKENS + end for end in ends]
    shared = _shared_tokens(prompts)
    if len(prompts) == 1:
        assert shared == 0
        return
    assert SHARED_TOKENS <= shared < min(map(len, prompts))
    assert len({tuple(prompt[:shared]) for prompt in prompts}) == 1
    assert shared == min(map(len, prompts)) - 1 or len({prompt[shared] for prompt in prompts}) > 1


def test_wrong_tokens_are_named_before_any_work(engine: Engine) -> None:
    vocab = engine.model.config.true_vocab_size
    with pytest.raises(InputError, match=f"prompt 1: prompt has token {vocab}"):
        engine.stream(["a", [vocab]], GREEDY)
    with pytest.raises(InputError, match="logit_bias has token 9999"):
        engine.stream(["a"], SamplingParams(logit_bias={9999: 1.0}))
    with pytest.raises(InputError, match="2 prompts and 1 sampling"):
        engine.stream(["a", "b"], [GREEDY])


def test_an_empty_prompt_begins_a_document(engine: Engine) -> None:
    assert engine.generate([""], GREEDY) == engine.generate([[engine.tokenizer.bos_id]], GREEDY)
    text, ids = "The sea", [engine.tokenizer.bos_id, *engine.tokenizer.encode("The sea")]
    assert engine.generate([text], GREEDY) == engine.generate([ids], GREEDY)
    assert engine.generate([], GREEDY) == []


def test_padding_of_the_vocabulary_is_never_generated(engine: Engine) -> None:
    config = engine.model.config
    assert config.padded_vocab_size > config.true_vocab_size
    wild = engine.generate(["a"] * 8, SamplingParams(max_tokens=50, temperature=50.0, seed=1, ignore_eos=True))
    assert all(token < config.true_vocab_size for c in wild for token in c.token_ids)


def test_logprobs_come_with_each_token(engine: Engine) -> None:
    completion = engine.generate(["The"], SamplingParams(max_tokens=5, temperature=0, logprobs=2, ignore_eos=True))[0]
    assert [entry.token for entry in completion.logprobs] == list(completion.token_ids)
    for entry in completion.logprobs:
        assert entry.top[0] == (entry.token, entry.logprob)
        assert entry.top[0][1] >= entry.top[1][1]


def test_a_closed_stream_leaves_the_engine_usable_and_gradients_on(engine: Engine) -> None:
    stream = engine.stream(["The"], SamplingParams(max_tokens=100, seed=1, ignore_eos=True))
    assert len(list(islice(stream, 2))) == 2
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    stream.close()
    assert engine.generate(["The"], GREEDY)


def test_prompts_nobody_waits_for_leave_the_batch_and_change_no_other(engine: Engine) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.9, seed=4, ignore_eos=True)
    whole = engine.generate(PROMPTS, params)
    dropped: set[int] = {4}
    texts = dict.fromkeys(range(len(PROMPTS)), "")
    finished = set()
    for piece in engine.stream(PROMPTS, params, dropped=dropped):
        texts[piece.prompt] += piece.text
        if len(texts[1]) > 2:
            dropped.add(1)
        if piece.finish:
            finished.add(piece.prompt)
    assert finished == {0, 2, 3}
    assert texts[4] == ""
    assert len(texts[1]) < len(whole[1].text)
    assert all(texts[prompt] == whole[prompt].text for prompt in finished)


def test_one_call_from_a_folder(folder: Path, engine: Engine) -> None:
    assert generate(folder, PROMPTS[:1], GREEDY, device="cpu") == engine.generate(PROMPTS[:1], GREEDY)
