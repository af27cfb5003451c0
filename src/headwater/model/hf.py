"""Hugging Face folders: import and export of weights, safetensors only.

In: a folder with `config.json` and `model.safetensors` (or shards with an index). Out: a `Decoder`, or for ModernBERT
an `Encoder`, with the same logits. The other way writes such a folder, readable by `transformers` 4 and 5 and by vLLM.
Tensors pass one by one, so neither way holds the model twice. Pickled weights (`.bin`, `.pt`) are refused: loading one
may run what it contains.

    model = load_hf(Path("Qwen3-0.6B")); save_hf(model, Path("export"), tokenizer_files=Path("tokenizer/hf"))
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headwater.core.errors import InputError, UserError
from headwater.core.files import atomic_write, disk_errors, free_bytes_check, fsync_dir, fsync_file, temp_path
from headwater.core.jsonl import pretty_json
from headwater.model.config import ModelConfig
from headwater.model.decoder import Decoder
from headwater.model.encoder import Encoder
from headwater.model.hf_config import config_from_hf, config_to_hf
from headwater.model.modernbert_hf import tensor_plan

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 4_000_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Model = Decoder | Encoder

TokenizerFiles = Path | Callable[[Path], None]


# Import.


def read_hf_config(folder: Path) -> ModelConfig:
    """The model described by `config.json`. InputError if it is missing, broken or not supported."""
    return config_from_hf(_json(folder / "config.json"), where=str(folder / "config.json"))


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype `config.json` says the weights have; float32 if it does not say."""
    data = _json(folder / "config.json")
    name = str(data.get("dtype") or data.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(f"dtype {name!r} is not supported", where=str(folder / "config.json"))
    return DTYPES[name]


def empty_model(config: ModelConfig) -> Model:
    """The model of a configuration on the meta device: shapes without memory."""
    with torch.device("meta"):
        return Encoder(config) if config.architecture == "encoder" else Decoder(config)


def load_hf(folder: Path | str, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Model:
    """Load a Hugging Face folder. `dtype` None keeps the one `config.json` names.

    Raises InputError if files are missing, are pickles, or do not hold exactly the tensors the configuration asks for.
    """
    folder = Path(folder)
    config = read_hf_config(folder)
    files = _weight_files(folder)
    model = empty_model(config).to(dtype or stored_dtype(folder)).to_empty(device=device)
    parameters = dict(model.named_parameters())
    plan = _plan(config, list(parameters))
    _check_names(set(plan), files, config, folder)
    with torch.no_grad():
        for name, tensor in _read(files):
            if name in plan:
                _copy({part: parameters[part] for part in plan[name]}, tensor, name, config, files[name])
    return model


def _plan(config: ModelConfig, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Tensor of the folder -> our parameters that make it up, joined along their first axis."""
    return tensor_plan(config, names) if config.architecture == "encoder" else {name: (name,) for name in names}


def _weight_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it."""
    if (folder / INDEX).is_file():
        listed = _json(folder / INDEX).get("weight_map")
        if not isinstance(listed, dict):
            raise InputError("weight_map is missing", where=str(folder / INDEX))
        files = {name: folder / str(file) for name, file in listed.items()}
        for path in sorted(set(files.values())):
            if path.parent != folder or not path.is_file():
                raise InputError(f"{path.name} is named in the index and not there", where=str(folder / INDEX))
        return files
    if (folder / WEIGHTS).is_file():
        with _open(folder / WEIGHTS) as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for path in folder.glob(pattern))
    if pickles:
        raise InputError(
            f"weights are pickles ({pickles[0]}); loading one may run any code it contains",
            where=str(folder),
            mend="convert them where they are trusted: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
        )
    raise InputError(f"neither {WEIGHTS} nor {INDEX} is here", where=str(folder))


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"cannot be read as safetensors: {error}", where=str(path), mend="fetch the file again"
        ) from error


def _read(files: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    by_file: dict[Path, list[str]] = {}
    for name, path in files.items():
        by_file.setdefault(path, []).append(name)
    for path, names in by_file.items():
        with _open(path) as file:
            for name in names:
                try:
                    yield name, file.get_tensor(name)
                except SafetensorError as error:
                    raise InputError(f"tensor {name} is not in the file", where=str(path)) from error


def _check_names(wanted: set[str], files: Mapping[str, Path], config: ModelConfig, folder: Path) -> None:
    missing = sorted(wanted - set(files))
    if missing:
        raise InputError(f"{len(missing)} tensors are missing, the first is {missing[0]}", where=str(folder))
    extra = {name for name in set(files) - wanted if not name.endswith("rotary_emb.inv_freq")}
    if config.tie_word_embeddings:
        extra -= {"lm_head.weight", "decoder.weight"}  # a copy of the embedding some writers leave in
    if extra:
        raise InputError(
            f"{len(extra)} tensors have no place in this model, the first is {min(extra)}",
            where=str(folder),
            mend="config.json does not describe these weights",
        )


def _copy(parts: Mapping[str, Tensor], tensor: Tensor, name: str, config: ModelConfig, path: Path) -> None:
    rows = [config.true_vocab_size if _is_vocabulary(part) else p.shape[0] for part, p in parts.items()]
    rest = next(iter(parts.values())).shape[1:]
    if tuple(tensor.shape) != (sum(rows), *rest):
        raise InputError(
            f"tensor {name} is {list(tensor.shape)}, the configuration asks for {[sum(rows), *rest]}", where=str(path)
        )
    for parameter, part in zip(parts.values(), tensor.split(rows), strict=True):
        parameter[: len(part)].copy_(part)
        parameter[len(part) :].zero_()


def _is_vocabulary(name: str) -> bool:
    return name in ("model.embed_tokens.weight", "lm_head.weight", "lm_head_bias")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputError("file is missing", where=str(path), mend="give a Hugging Face model folder") from error
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", where=str(path))
    return value


# Export.


def save_hf(
    model: Model | tuple[ModelConfig, Mapping[str, Tensor]],
    folder: Path | str,
    *,
    dtype: str | None = None,
    tokenizer_files: TokenizerFiles | None = None,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> list[str]:
    """Write a Hugging Face folder; returns the names of the files, sorted.

    model: a whole model, or a configuration with its tensors by name. dtype: float32, bfloat16 or float16 (None: as
    the weights are). tokenizer_files: a folder whose files are copied, or a function that writes them into the folder.
    Padding rows of embedding and head are left out; a tied head is not written. `config.json` comes last, so a folder
    with one is whole. Raises UserError for a dtype it does not know, DiskSpaceError if it does not fit.
    """
    folder = Path(folder)
    config, tensors = model if isinstance(model, tuple) else (model.config, dict(model.named_parameters()))
    names = _export_names(config, tensors)
    kind = _export_dtype(dtype, tensors[names[0]])
    folder.mkdir(parents=True, exist_ok=True)
    needed = sum(_rows(name, tensors[name], config).numel() * DTYPES[kind].itemsize for name in names)
    free_bytes_check(folder, needed, "the export")
    _write_weights(folder, config, tensors, _plan(config, names), DTYPES[kind], shard_bytes)
    if callable(tokenizer_files):
        tokenizer_files(folder)
    elif tokenizer_files is not None:
        for path in sorted(tokenizer_files.iterdir()):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    tokens = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
    if config.architecture == "decoder":
        generation = {name: value for name, value in tokens.items() if value is not None}
        atomic_write(folder / "generation_config.json", pretty_json(generation))
    hf = config_to_hf(config, dtype=kind, **tokens)
    atomic_write(folder / "config.json", pretty_json(hf))
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _export_names(config: ModelConfig, tensors: Mapping[str, Tensor]) -> list[str]:
    wanted = [name for name, _ in empty_model(config).named_parameters()]
    if missing := sorted(set(wanted) - set(tensors)):
        raise UserError(f"the weights lack {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    return wanted


def _export_dtype(dtype: str | None, example: Tensor) -> str:
    kind = dtype or str(example.dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise UserError(f"cannot export as {kind!r}", where="export.dtype", mend=f"use one of {', '.join(DTYPES)}")
    return kind


def _rows(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    return tensor[: config.true_vocab_size] if _is_vocabulary(name) else tensor


def _write_weights(
    folder: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    plan: Mapping[str, tuple[str, ...]],
    dtype: torch.dtype,
    shard_bytes: int,
) -> None:
    shards: list[list[str]] = [[]]
    size = 0
    for name, parts in plan.items():
        bytes_ = sum(_rows(part, tensors[part], config).numel() for part in parts) * dtype.itemsize
        if shards[-1] and size + bytes_ > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += bytes_
    for stale in (*folder.glob("model-*-of-*.safetensors"), folder / WEIGHTS, folder / INDEX, folder / "config.json"):
        stale.unlink(missing_ok=True)  # a folder holds one model
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        held = {}
        for name in shard:
            rows = [_rows(part, tensors[part], config).detach().to("cpu", dtype) for part in plan[name]]
            held[name] = torch.cat(rows)
            total += held[name].numel() * dtype.itemsize
            weight_map[name] = file
        _save(held, folder / file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        atomic_write(folder / INDEX, pretty_json(index))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    temp = temp_path(path)
    try:
        with disk_errors(path):
            save_file(tensors, temp, metadata={"format": "pt"})
            fsync_file(temp)
            os.replace(temp, path)
            fsync_dir(path.parent)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
