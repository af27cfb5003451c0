"""Loading a model for use: exports, checkpoints and runs, and what is said about anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headwater.core.errors import CorruptArtifactError, InputError, UserError
from headwater.engine import Engine, load_model
from headwater.engine.load import stop_tokens
from headwater.tokenizer import Tokenizer
from headwater.train.checkpoint import CheckpointStore
from headwater.train.weights import AVERAGE, WEIGHTS
from tests.engine.conftest import export, make_model


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model(torch.arange(40, 60)[None]))


def make_run(folder: Path, tokenizer: Tokenizer) -> Path:
    """A run folder with two checkpoints, the second with averaged weights."""
    tokenizer.save(folder / "tokenizer")
    (folder / "run.json").write_text(json.dumps({"run": folder.name, "steps": 200}))
    store = CheckpointStore(folder / "checkpoints", run_id=folder.name, keep=5)
    for step, averaged in ((100, False), (200, True)):
        model = make_model(tokenizer, seed=step)
        tensors = {WEIGHTS + name: tensor for name, tensor in model.state_dict().items()}
        if averaged:
            mean = make_model(tokenizer, seed=999)
            tensors |= {AVERAGE + name: tensor for name, tensor in mean.state_dict().items()}
        store.save(step, tensors, {"step": step, "model": model.config.to_dict()})
    return folder


def test_an_export_loads_with_its_tokenizer_dtype_and_stop_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)
    export(model, tokenizer, tmp_path)
    loaded, its_tokenizer = load_model(tmp_path, device="cpu")
    assert not loaded.training
    assert torch.equal(logits(loaded), logits(model))
    assert its_tokenizer.encode("水 river") == tokenizer.encode("水 river")
    assert next(load_model(tmp_path, device="cpu", dtype="bfloat16").model.parameters()).dtype == torch.bfloat16
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 11]}))
    assert stop_tokens(tmp_path) == {2, 11}
    assert Engine.load(tmp_path, device="cpu").stop_ids == {2, 11}


def test_a_run_gives_its_newest_checkpoint_and_a_checkpoint_itself(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = make_run(tmp_path / "r1", tokenizer)
    averaged = load_model(run, device="cpu").model
    assert torch.equal(logits(averaged), logits(make_model(tokenizer, seed=999)))
    first, its_tokenizer = load_model(run / "checkpoints/step-00000100", device="cpu")
    assert torch.equal(logits(first), logits(make_model(tokenizer, seed=100)))
    assert its_tokenizer.vocab_size == tokenizer.vocab_size
    assert Engine.load(run, device="cpu").stop_ids == {tokenizer.eos_id}


def test_a_damaged_checkpoint_is_not_used(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = make_run(tmp_path / "r1", tokenizer)
    data = max((run / "checkpoints/step-00000100").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(CorruptArtifactError, match="content has changed"):
        load_model(run / "checkpoints/step-00000100")


def test_anything_else_is_refused_with_what_was_looked_for(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"neither config\.json"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="dtype 'int3' is not known"):
        load_model(folder, dtype="int3")
    with pytest.raises(UserError, match="device 'gpu' cannot be used"):
        load_model(folder, device="gpu")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="no checkpoint yet"):
        load_model(tmp_path)


def test_a_tokenizer_too_large_for_the_model_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="use the tokenizer the model was trained with"):
        Engine(make_model(tokenizer, vocab_size=100), tokenizer)
