"""Units of whole-word masking: words in every script, never pieces of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.dataset.words import WordBorders, segment
from headwater.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def borders(tokenizer: Tokenizer) -> WordBorders:
    return WordBorders(tokenizer)


def units(text: str, tokenizer: Tokenizer, borders: WordBorders) -> list[str]:
    """The units of a text, as text."""
    tokens = np.array([tokenizer.encode(text)])
    begins = np.flatnonzero(borders.begins(tokens, np.zeros_like(tokens, dtype=np.int32))[0])
    ends = [*begins.tolist()[1:], tokens.shape[1]]
    return [tokenizer.decode(tokens[0, a:b].tolist()) for a, b in zip(begins.tolist(), ends, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unbelievably quuxish words", ["unbelievably", " quuxish", " words"]),
        ("don't say 1,234.5 or foo_bar2", ["don't", " say", " 1,234.5", " or", " foo_bar2"]),
        ("naïve Straße", ["naïve", " Straße"]),
        ("Привет, мир", ["Привет", ",", " мир"]),
    ],
)
def test_words_of_alphabets_are_units(
    text: str, expected: list[str], tokenizer: Tokenizer, borders: WordBorders
) -> None:
    assert units(text, tokenizer, borders) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("研究生命起源", "研究 生命 起源"),
        ("南京市长江大桥", "南京市 长江大桥"),
        ("我们今天去参观中华人民共和国国家博物馆", "我们 今天 去 参观 中华人民共和国 国家博物馆"),
        ("他们的确实现了目标", "他们 的确 实现 了 目标"),
        ("龘龘今天", "龘 龘 今天"),
        ("國家圖書館與語言學院", "國家圖書館 與 語言 學院"),
    ],
)
def test_chinese_is_cut_into_words(text: str, expected: str) -> None:
    assert segment(text) == expected.split()


def test_a_chinese_unit_is_whole_words_and_whole_tokens(tokenizer: Tokenizer, borders: WordBorders) -> None:
    text = "我们今天去参观中华人民共和国国家博物馆,研究生命起源"
    found = units(text, tokenizer, borders)
    assert "".join(found) == text
    words = [*segment("我们今天去参观中华人民共和国国家博物馆"), ",", *segment("研究生命起源")]
    word_ends, unit_ends = (set(np.cumsum([len(part) for part in parts]).tolist()) for parts in (words, found))
    assert unit_ends <= word_ends  # never inside a word
    assert "中华人民共和国" in found
    assert "," in found


def test_mixed_scripts_meet_at_a_border(tokenizer: Tokenizer, borders: WordBorders) -> None:
    found = units("用Python写代码3次", tokenizer, borders)
    assert "Python" in found
    assert "".join(found) == "用Python写代码3次"


def test_the_bytes_of_a_character_are_one_unit(tokenizer: Tokenizer, borders: WordBorders) -> None:
    text = "𝄞🙂"  # in no vocabulary: four bytes each
    assert units(text, tokenizer, borders) == ["𝄞", "🙂"]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_units_make_up_the_text_and_hold_whole_characters(
    text: str, tokenizer: Tokenizer, borders: WordBorders
) -> None:
    found = units(text, tokenizer, borders) if text else []
    assert "".join(found) == text


def test_documents_and_special_tokens_are_borders(tokenizer: Tokenizer, borders: WordBorders) -> None:
    one = tokenizer.encode("unbelievably")
    assert len(one) > 1
    tokens = np.array([[*one, *one, tokenizer.eos_id, *one]])
    documents = np.array([[0] * len(one) + [1] * (len(one) + 1) + [1] * len(one)], dtype=np.int32)
    found = np.flatnonzero(borders.begins(tokens, documents)[0]).tolist()
    n = len(one)
    assert found == [0, n, 2 * n, 2 * n + 1]


def test_a_byte_level_tokenizer_has_the_same_words(tmp_path: Path) -> None:
    """Qwen's and GPT's kind: pieces are bytes, a space is written into the piece behind it."""
    import json

    from tokenizers import Tokenizer as Fast
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = Fast(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(["some words of text", "今天我们"], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    tokenizer = Tokenizer.load(tmp_path)
    text = "unbelievable words don't 今天我们"
    assert "".join(units(text, tokenizer, WordBorders(tokenizer))) == text
    assert units(text, tokenizer, WordBorders(tokenizer))[:3] == ["unbelievable", " words", " don't"]
