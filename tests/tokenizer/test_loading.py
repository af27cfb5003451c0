"""Loading: our folders, exports without the model, foreign Hugging Face folders; and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.tokenizer import Tokenizer

from .conftest import Trained
from .texts import chinese, english

TEXT = "".join(chinese(3, seed=4)) + english()[0] + "\n\tcode  = 1\r\n"


def test_an_export_without_the_model_is_the_same_tokenizer(trained: Trained) -> None:
    assert not (trained.hf_folder / "tokenizer.model").exists()
    assert trained.exported.sha256 == trained.ours.sha256
    assert trained.exported.vocab_size == trained.ours.vocab_size
    assert trained.exported.special_ids == trained.ours.special_ids
    assert trained.exported.special_names == trained.ours.special_names
    assert trained.exported.eos_id == trained.ours.eos_id


def test_a_changed_export_is_another_tokenizer(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.hf_folder, tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    changed = Tokenizer.load(tmp_path / "hf")
    assert changed.sha256 != trained.ours.sha256
    assert changed.encode(TEXT) == trained.ours.encode(TEXT)


def test_a_saved_copy_in_a_run_folder_loads(trained: Trained, tmp_path: Path) -> None:
    for original in (trained.ours, trained.exported):
        run = tmp_path / original.path.name
        original.save(run / "tokenizer")
        again = Tokenizer.load(run)
        assert again.sha256 == original.sha256
        assert again.encode(TEXT) == original.encode(TEXT)
    assert Tokenizer.load(tmp_path / "model" / "tokenizer" / "tokenizer.model").sha256 == trained.ours.sha256
    assert Tokenizer.load(trained.hf_folder / "tokenizer.json").sha256 == trained.ours.sha256


def test_exports_of_both_loads_are_byte_identical(trained: Trained, tmp_path: Path) -> None:
    trained.ours.export_hf(tmp_path / "a")
    trained.exported.export_hf(tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_begin_and_end_tokens_are_added_only_when_asked(trained: Trained) -> None:
    ids = trained.ours.encode("海")
    assert trained.ours.encode("海", bos=True, eos=True) == [1, *ids, 2]
    assert trained.ours.decode([1, *ids, 2]) == "海"
    assert trained.ours.decode([1, *ids, 2], skip_special=False) == "<s>海</s>"
    assert trained.exported.decode([1, *ids, 2], skip_special=False) == "<s>海</s>"
    assert trained.ours.encode("") == []
    assert trained.ours.decode([]) == ""


def test_a_lone_surrogate_is_refused_with_its_place(trained: Trained) -> None:
    for tokenizer in (trained.ours, trained.exported):
        with pytest.raises(InputError, match=r"U\+D83D at character 2"):
            tokenizer.encode("ab\ud83d")


def test_an_id_outside_the_vocabulary_is_refused(trained: Trained) -> None:
    for tokenizer in (trained.ours, trained.exported):
        for bad in (-1, tokenizer.vocab_size):
            with pytest.raises(InputError, match="outside the vocabulary"):
                tokenizer.decode([5, bad])


def test_broken_bytes_a_model_may_generate_become_replacement_characters(trained: Trained) -> None:
    water = [31 + byte for byte in "水".encode()]
    for tokenizer in (trained.ours, trained.exported):
        assert tokenizer.decode(water) == "水"
        assert tokenizer.decode([*water[:2], *tokenizer.encode("a")]) == "\ufffda"
        assert tokenizer.token_bytes(water[0]) == b"\xe6"
        assert tokenizer.is_byte(water[0])
        assert not tokenizer.is_byte(2)


def test_an_unknown_reserved_token_is_refused_with_those_there_are(trained: Trained) -> None:
    with pytest.raises(InputError, match=r"<\|tool\|>") as caught:
        trained.ours.id_of("<|tool|>")
    assert "<mask>" in caught.value.mend


def _save(tokenizer: tokenizers.Tokenizer, folder: Path, config: dict[str, object]) -> None:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_byte_level_tokenizer_in_the_style_of_qwen_and_smollm_loads(tmp_path: Path) -> None:
    foreign = tokenizers.Tokenizer(models.BPE())
    foreign.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    foreign.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    foreign.train_from_iterator([*english(), *chinese(50)], trainer)
    config = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>", "bos_token": None}
    _save(foreign, tmp_path / "qwen", config)
    loaded = Tokenizer.load(tmp_path / "qwen")
    assert (loaded.eos_id, loaded.pad_id, loaded.bos_id) == (2, 0, None)
    assert loaded.special_ids == {0, 1, 2}
    text = TEXT + "😀 <|im_start|>user"
    ids = loaded.encode(text)
    assert not loaded.special_ids & set(ids)
    assert loaded.decode(ids) == text
    assert b"".join(map(loaded.token_bytes, ids)) == text.encode()
    assert loaded.encode("a", eos=True)[-1] == 2
    with pytest.raises(InputError, match="begin-of-text"):
        loaded.encode("a", bos=True)
    loaded.save(tmp_path / "copy")
    assert Tokenizer.load(tmp_path / "copy").sha256 == loaded.sha256


def test_a_tokenizer_in_the_style_of_llama_2_loads(trained_models: dict[str, Trained], tmp_path: Path) -> None:
    layout = json.loads((trained_models["bpe"].hf_folder / "tokenizer.json").read_text())
    spaced = {token.replace(" ", "▁"): number for token, number in layout["model"]["vocab"].items()}
    merges = [(left.replace(" ", "▁"), right.replace(" ", "▁")) for left, right in layout["model"]["merges"]]
    llama = tokenizers.Tokenizer(models.BPE(spaced, merges, unk_token="<unk>", byte_fallback=True))
    llama.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    llama.decoder = decoders.Sequence(steps)
    llama.add_special_tokens(["<unk>", "<s>", "</s>"])
    _save(llama, tmp_path / "llama", {})
    (tmp_path / "llama" / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 11]}))
    (tmp_path / "llama" / "tokenizer.model").write_bytes(b"Llama's own model, which is not read")
    loaded = Tokenizer.load(tmp_path / "llama")
    assert (loaded.bos_id, loaded.eos_id, loaded.pad_id) == (1, 2, None)
    text = "def f(x):\n    return x  # 海😀"
    assert loaded.decode(loaded.encode(text)) == text
    assert b"".join(map(loaded.token_bytes, loaded.encode(text))) == b" " + text.encode()


def test_a_tokenizer_without_an_end_token_is_refused_when_one_is_needed(tmp_path: Path) -> None:
    _save(tokenizers.Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")), tmp_path / "bare", {})
    bare = Tokenizer.load(tmp_path / "bare")
    assert bare.encode("a") == [0]
    with pytest.raises(InputError, match="end-of-document") as caught:
        _ = bare.eos_id
    assert "eos_token" in caught.value.mend


def test_folders_without_a_tokenizer_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer here"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\xff\xffnonsense")
    with pytest.raises(CorruptArtifactError, match="SentencePiece"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorruptArtifactError, match="cannot read"):
        Tokenizer.load(tmp_path)


def test_importing_configuration_and_class_loads_nothing_heavy() -> None:
    code = (
        "import sys, headwater.tokenizer, headwater.tokenizer.config, headwater.dataset, headwater.dataset.config\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'sentencepiece', 'tokenizers', 'google.protobuf'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
