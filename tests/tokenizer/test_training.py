"""Training: deterministic, bounded on hostile lines, and with errors a person can act on."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater.core.errors import RecipeError
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.lines import MAX_LINE_CHARACTERS, training_lines
from headwater.tokenizer.model_file import parse
from headwater.tokenizer.specials import LINE_SYMBOLS, SPECIALS
from headwater.tokenizer.training import train_model

from .conftest import MODELS, Trained
from .texts import chinese, documents, english

_SCRIPT = """
import hashlib, os, sys
if sys.argv[2] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from tests.tokenizer.texts import documents
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.training import train_model
config = TokenizerConfig(model_type=sys.argv[1], vocab_size=1024)
print(hashlib.sha256(train_model([d.text for d in documents()], config)).hexdigest())
"""


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_is_the_same_on_one_core_and_on_all(kind: str) -> None:
    root = Path(__file__).parents[2]
    hashes = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT, kind, cores], cwd=root, check=True, capture_output=True, text=True
        ).stdout
        for cores in ("one", "all")
    }
    assert len(hashes) == 1


def test_reserved_tokens_and_bytes_have_their_fixed_ids(trained: Trained) -> None:
    pieces = [piece.piece for piece in parse(trained.model).pieces]
    assert pieces[:15] == [
        *("<unk>", "<s>", "</s>", "<pad>", "<mask>", "<cls>", "<sep>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        *("<|start|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
    ]
    assert pieces[15:31] == [f"<spare_{number}>" for number in range(16)]
    assert pieces[31:287] == [f"<0x{value:02X}>" for value in range(256)]
    assert tuple(pieces[287 : 287 + len(LINE_SYMBOLS)]) == LINE_SYMBOLS
    assert len(pieces) == len(set(pieces)) == trained.ours.vocab_size
    assert [trained.ours.id_of(name) for name in SPECIALS] == list(range(31)) == sorted(trained.ours.special_ids)
    assert (trained.ours.unk_id, trained.ours.bos_id, trained.ours.eos_id, trained.ours.pad_id) == (0, 1, 2, 3)


def test_indentation_after_a_line_break_is_one_token(trained: Trained) -> None:
    for text in ("\n    ", "\n\t\t", "\n\n", "\n" + " " * 12):
        assert len(trained.ours.encode(text)) == 1
    assert len(trained.ours.encode("2024")) == 4


def test_repeated_and_very_long_lines_do_not_stall_training() -> None:
    boilerplate = "版权所有，未经许可不得转载。" * 40
    texts = [*chinese(60), *english()[:40], *([boilerplate] * 400), "x" * 300_000, "数据" * 100_000]
    started = time.monotonic()
    for kind in MODELS:
        config = TokenizerConfig.model_validate({"model_type": kind, "vocab_size": 640})
        model = train_model(texts, config)
        pieces = [piece.piece for piece in parse(model).pieces]
        assert not any("版权所有" in piece and len(piece) > 8 for piece in pieces)
    assert time.monotonic() - started < 60


def test_lines_are_cut_capped_and_free_of_what_the_trainer_reserves() -> None:
    lines = list(training_lines(["same\nsame\nsame\nsame", "a▁b\x00▅c", "y" * 5000, "  \n\n"], max_repeats=2))
    assert lines.count("\nsame") == 2
    assert lines[0] == "same"
    assert "abc" in lines
    assert max(map(len, lines)) == MAX_LINE_CHARACTERS
    assert "".join(line for line in lines if "y" in line) == "y" * 5000
    words = "word " * 2000
    assert "".join(training_lines([words], max_repeats=99)) == words


def test_too_little_text_is_an_error_with_the_largest_possible_vocabulary() -> None:
    with pytest.raises(RecipeError, match=r"at most [\d]+") as caught:
        train_model(chinese(3), TokenizerConfig(vocab_size=32_768))
    assert caught.value.where == "tokenizer.vocab_size"
    assert "set vocab_size to" in caught.value.mend


def test_a_vocabulary_too_small_for_the_characters_is_an_error() -> None:
    many = ["".join(chr(0x4E00 + start + offset) for offset in range(50)) for start in range(0, 3000, 50)]
    with pytest.raises(RecipeError, match="too few"):
        train_model(many, TokenizerConfig(vocab_size=1024, character_coverage=1.0))


def test_no_text_is_an_error() -> None:
    with pytest.raises(RecipeError, match="no text"):
        train_model(["", "\n \n"], TokenizerConfig(vocab_size=512))


def test_text_that_names_reserved_tokens_does_not_break_training(tmp_path: Path) -> None:
    texts = ["<s> </s> <unk> <0x0A> <|start|> <pad> <spare_1>\n" * 200, *(document.text for document in documents())]
    model = train_model(texts, TokenizerConfig(vocab_size=1024, max_line_repeats=500))
    (tmp_path / "tokenizer.model").write_bytes(model)
    assert Tokenizer.load(tmp_path).sha256 == hashlib.sha256(model).hexdigest()
