"""A model and its tokenizer from a folder: an export, any Hugging Face folder of a supported kind, a run, a checkpoint.

In: a path. Out: `(Decoder, Tokenizer)` on the wanted device.

    model, tokenizer = load_model("workspace/runs/4f2a")
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from headwater.core.errors import InputError, UserError
from headwater.model import Decoder, ModelConfig
from headwater.model.hf import DTYPES, Model, empty_model, load_hf
from headwater.tokenizer import Tokenizer

if TYPE_CHECKING:
    from headwater.train.weights import Weights


class LoadedModel(NamedTuple):
    """What `load_model` gives; unpacks into model and tokenizer."""

    model: Decoder
    tokenizer: Tokenizer


def load_model(path: Path | str, device: str = "auto", dtype: str = "auto") -> LoadedModel:
    """Load a model for use, in evaluation mode.

    path: a Hugging Face folder (config.json and safetensors), a run folder (its final or newest checkpoint, averaged
    weights if it keeps them) or one checkpoint's folder. device: auto takes CUDA, then MPS, then the CPU. dtype:
    float32, bfloat16, float16, or auto for the dtype stored.

    Raises InputError if the path holds none of these, or an encoder, which cannot generate; UserError for a device or
    dtype that is not there, CorruptArtifactError for a damaged checkpoint.
    """
    path = Path(path)
    target, kind = pick_device(device), _pick_dtype(dtype)
    if (path / "config.json").is_file():
        return LoadedModel(_decoder(load_hf(path, dtype=kind, device=target), path).eval(), Tokenizer.load(path))
    if (path / "run.json").is_file() or ((path / "manifest.json").is_file() and path.name.startswith("step-")):
        return _from_run(path, target, kind)
    if not path.exists():
        raise InputError("no such folder", where=str(path), mend="give a run, a checkpoint or an export")
    raise InputError(
        "holds no model: there is neither config.json (export, Hugging Face folder) nor run.json (run)",
        where=str(path),
        mend="give one run of WORKSPACE/runs, a checkpoint of it, or an export",
    )


def _from_run(path: Path, device: torch.device, dtype: torch.dtype | None) -> LoadedModel:
    from headwater.train.run_folder import RunFolder
    from headwater.train.weights import load_weights

    model = _decoder(model_of(load_weights(path)), path).to(device=device, dtype=dtype)
    return LoadedModel(model.eval(), Tokenizer.load(RunFolder.of(path).tokenizer_path))


def model_of(weights: Weights) -> Model:
    """The model of a checkpoint's weights, which it takes as they are, without a copy."""
    model = empty_model(ModelConfig.model_validate(weights.model))
    model.load_state_dict(weights.tensors, assign=True)
    return model


def _decoder(model: Model, path: Path) -> Decoder:
    if isinstance(model, Decoder):
        return model
    raise InputError(
        "this model is an encoder: it fills masks, it does not continue text",
        where=str(path),
        mend="use it with transformers: `headwater export` it, then AutoModelForMaskedLM.from_pretrained",
    )


def pick_device(name: str) -> torch.device:
    """The device of a name; auto: CUDA, then MPS, then the CPU. UserError if it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {name!r} cannot be used: {reason}", where="device", mend="use auto or cpu") from error
    return device


def _pick_dtype(name: str) -> torch.dtype | None:
    if name != "auto" and name not in DTYPES:
        raise UserError(f"dtype {name!r} is not known", where="dtype", mend=f"use auto, {', '.join(DTYPES)}")
    return DTYPES.get(name)


def stop_tokens(path: Path | str) -> frozenset[int]:
    """Ids that end a text by a Hugging Face folder's generation_config.json (Llama 3 has several); empty elsewhere."""
    file = Path(path) / "generation_config.json"
    try:
        ids = json.loads(file.read_bytes()).get("eos_token_id") if file.is_file() else None
    except (ValueError, AttributeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(file)) from error
    return frozenset([ids] if isinstance(ids, int) else ids or ())
