"""The smaller baselines: unigram and xz."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.evaluate.compressors import xz_bits_per_byte, xz_bytes
from headwater.evaluate.unigram import Unigram


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_unigram_probabilities_sum_to_one_and_no_token_is_impossible(stream: list[int]) -> None:
    model = Unigram.fit(np.array(stream), vocab_size=12)
    probabilities = np.exp(model.log_probabilities(np.arange(12)))
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities.min() > 0


def test_unigram_is_counts_with_a_half_added() -> None:
    model = Unigram.fit(np.array([1, 1, 2]), vocab_size=4)
    assert np.exp(model.log_probabilities(np.array([1, 2, 3]))) == pytest.approx([2.5 / 5, 1.5 / 5, 0.5 / 5])


def test_unigram_refuses_an_empty_stream() -> None:
    with pytest.raises(InputError, match="no tokens"):
        Unigram.fit(np.array([], dtype=np.int32), vocab_size=4)


@pytest.mark.skipif(which("xz") is None, reason="needs the xz program (Debian package xz-utils)")
@pytest.mark.parametrize("size", [0, 1, 100, 70_000, 300_000])
def test_sizes_equal_those_of_the_xz_program(size: int, tmp_path: Path) -> None:
    words = ["水", "stream", " ", "head", "源头", "\n", "flow"]
    text = "".join(np.random.default_rng(size).choice(words, size)).encode()
    (tmp_path / "text").write_bytes(text)
    done = subprocess.run(["xz", "-9e", "-T1", "-c", str(tmp_path / "text")], capture_output=True, check=True)
    assert xz_bytes(text) == len(done.stdout)


def test_joined_documents_compress_better_than_each_alone() -> None:
    texts = [("the same opening of every page, again and again. " * 8 + str(number)).encode() for number in range(20)]
    result = xz_bits_per_byte(texts)
    assert result.concatenated is not None
    assert result.per_document is not None
    assert result.concatenated < result.per_document
    assert result.per_document == 8 * result.per_document_bytes / sum(map(len, texts))


def test_no_text_has_no_rate() -> None:
    assert xz_bits_per_byte([]).concatenated is None
    assert xz_bits_per_byte([b""]).per_document is None
