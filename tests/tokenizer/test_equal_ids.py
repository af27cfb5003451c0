"""The same ids from SentencePiece, from our export in the tokenizers library, and in transformers."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.inputs import read_inputs
from headwater.tokenizer.training import train_model

from .conftest import MODELS, Trained
from .texts import chinese, english, python_code

TRAPS = [
    *("<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "<0x41>", "<|start|>", "<|end|>", "<spare_3>", "<mask>", "<", ">"),
    *("▁", "▁▁", "▅", "\x00", "\x01", "\x7f", "\x1b[0m", "\r\n", "\r", "\t", "\t" * 5, "\n", "\n" * 9, "\n\n\t\t"),
    *(" ", "  ", "   ", " " * 17, "\n ", "\n    ", "\n     ", "\n" + " " * 40, " \n ", "\u3000", "\xa0", "\u2028"),
    *("a", "aa", "aaaa", "=" * 7, "-" * 40, "ab" * 9, "the", " the", "def ", "return", "0", "3.14", "1,000"),
    *("我们", "，", "。", "！？", "１２３", "繁體", "𠀀", "かな", "한국어", "العربية", "हिन्दी", "é", "e\u0301", "ß"),
    *("😀", "👨‍👩‍👧", "🇨🇳", "\ufeff", "\u200b", "\u200d", "\ufffd", "\U0010ffff", "\ud7ff", "\ue000"),
]

texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.one_of(st.sampled_from(TRAPS), st.text(max_size=3)), max_size=20).map("".join),
    st.text(alphabet="a =-\n", max_size=80),
)


@given(texts)
@settings(max_examples=300)
def test_any_text_comes_back_and_has_the_same_ids_everywhere(trained_models: dict[str, Trained], text: str) -> None:
    for kind in MODELS:
        trained = trained_models[kind]
        ids = trained.ours.encode(text)
        assert trained.ours.decode(ids) == text
        assert trained.exported.encode(text) == ids
        assert trained.exported.decode(ids) == text
        assert b"".join(map(trained.ours.token_bytes, ids)) == text.encode()
        assert [trained.exported.token_bytes(token) for token in ids] == [trained.ours.token_bytes(t) for t in ids]
        assert not trained.ours.special_ids & set(ids)
        if "▁" not in text:  # inside SentencePiece itself this character is a space
            assert trained.raw.encode(text) == ids
            assert trained.raw.decode(ids) == text


def test_whole_documents_have_the_same_ids_everywhere(trained: Trained) -> None:
    for text in [*chinese(40, seed=9), *english(), *python_code()]:
        ids = trained.ours.encode(text)
        assert trained.exported.encode(text) == ids
        assert trained.ours.decode(ids) == text
        assert len(text) > 4096 or trained.raw.encode(text) == ids


def test_a_long_text_is_encoded_as_if_in_one_piece(trained: Trained) -> None:
    text = (python_code()[0] + "".join(chinese(200))) * 3
    assert len(text) > 200_000
    ids = trained.ours.encode(text)
    assert ids == trained.exported.encode(text)
    if trained.kind == "bpe":  # unigram adds up scores, which round in so long a text
        assert ids == trained.raw.encode(text)


def test_transformers_reads_the_export_with_equal_ids(trained: Trained, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(str(trained.hf_folder))
    for path in trained.hf_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    auto = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert len(fast) == len(auto) == trained.ours.vocab_size
    assert (auto.bos_token_id, auto.eos_token_id, auto.pad_token_id, auto.unk_token_id) == (1, 2, 3, 0)
    for text in [*chinese(5), *english()[:5], *python_code()[:2], *(trap for trap in TRAPS if "<" not in trap)]:
        ids = trained.ours.encode(text)
        assert fast(text, add_special_tokens=False)["input_ids"] == ids
        assert auto(text, add_special_tokens=False)["input_ids"] == ids
        assert auto.decode(ids) == text
        assert auto.decode(ids, skip_special_tokens=True) == text
    hostile = "a</s>b<|start|>"
    assert auto(hostile, split_special_tokens=True, add_special_tokens=False)["input_ids"] == trained.ours.encode(
        hostile
    )
    assert auto(hostile, add_special_tokens=False)["input_ids"] == [
        *trained.ours.encode("a"),
        2,
        *trained.ours.encode("b"),
        10,
    ]


def test_prompts_of_transformers_begin_with_bos_as_documents_do(trained: Trained, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast.from_pretrained(str(trained.hf_folder))
    assert fast("水到渠成")["input_ids"] == [*trained.ours.document_prefix, *trained.ours.encode("水到渠成")]
    assert trained.ours.document_prefix == trained.exported.document_prefix == (trained.ours.bos_id,)


def test_a_reloaded_transformers_copy_keeps_the_ids(trained: Trained, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.AutoTokenizer.from_pretrained(str(trained.hf_folder)).save_pretrained(str(tmp_path))
    again = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    text = "\n".join(chinese(3) + english()[:3])
    assert again(text, add_special_tokens=False)["input_ids"] == trained.ours.encode(text)


@pytest.mark.shared_data
@pytest.mark.parametrize("kind", MODELS)
def test_real_text_has_equal_ids_and_comes_back(shared_data: Path, tmp_path: Path, kind: str) -> None:
    found: dict[str, list[str]] = {}
    for name in ("web", "books", "code", "papers", "other"):
        for document in read_inputs([shared_data / "corpora" / f"{name}.jsonl.zst"]):
            rows = found.setdefault(f"{name}/{document.lang}", [])
            rows.append(document.text[:20_000])
            if len(found) >= 2 and all(len(rows) >= 24 for rows in found.values()) and len(rows) > 40:
                break
    train = [text for rows in found.values() for text in rows[8:20]]
    config = TokenizerConfig.model_validate({"model_type": kind, "vocab_size": 4096})
    trained = Trained(kind, train_model(train, config), tmp_path)
    for rows in found.values():
        for text in rows[:8]:
            ids = trained.ours.encode(text)
            assert trained.exported.encode(text) == ids
            assert trained.ours.decode(ids) == text
            for line in text.split("\n")[:20]:
                if "▁" not in line:
                    assert trained.raw.encode(line) == trained.ours.encode(line)
