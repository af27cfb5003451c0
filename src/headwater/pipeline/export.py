"""The export stage: from a run's last weights to a Hugging Face folder, and the same on any model folder.

In: a run, one of its checkpoints, or a Hugging Face folder. Out: `config.json`, `model.safetensors`, the tokenizer's
files: what transformers, vLLM and `headwater serve` load.

    export_model(Path("workspace/runs/quickstart-0123456789abcdef"), Path("my-model"), dtype="bfloat16")
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.artifacts import Artifact, ArtifactWriter
from headwater.core.errors import UserError
from headwater.core.stage import StageContext
from headwater.pipeline.export_config import ExportConfig
from headwater.train.run_folder import RunFolder

if TYPE_CHECKING:
    from headwater.model.hf import Model

FOLDER = "model"
"""Where in the artifact the Hugging Face folder lies."""


def build(
    config: ExportConfig, inputs: dict[str, Artifact], out: ArtifactWriter, context: StageContext, run: RunFolder
) -> dict[str, Any]:
    """The stage's function; `run` is the finished training run."""
    with context.reporter.progress("export", total=1, unit="model") as bar:
        folder = out.scratch / FOLDER
        counts = export_model(run.path, folder, dtype=config.dtype)
        for name in counts["files"]:
            temp = out.temp(f"{FOLDER}/{name}")
            os.rename(folder / name, temp)
            out.finish(f"{FOLDER}/{name}", temp)
        bar.advance(1)
    context.reporter.decide(
        f"{counts['architecture']} with {counts['parameters']:,} parameters in {config.dtype}",
        why="averaged weights of the run" if counts["averaged"] else f"weights after step {counts['step']:,}",
    )
    return counts


def export_model(model: Path | str, out: Path | str, *, dtype: str | None = None) -> dict[str, Any]:
    """Write a model as a Hugging Face folder; returns what it is: step, parameters, files, whether it is an average.

    `dtype` is float32, bfloat16 or float16; None keeps the one the weights have. Raises InputError if there is no model
    or no tokenizer at `model`, UserError if `out` holds other files or is the model itself.
    """
    from headwater.model.hf import save_hf
    from headwater.tokenizer import Tokenizer

    source, folder = Path(model), Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("this folder exists and is not empty", where=str(folder), mend="name a new one with --out")
    loaded, facts, tokenizer_path = _load(source)
    tokenizer = Tokenizer.load(tokenizer_path)
    files = save_hf(
        loaded,
        folder,
        dtype=dtype,
        tokenizer_files=tokenizer.export_hf,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    count = loaded.config.parameter_count()
    return {
        "architecture": loaded.config.hf_type,
        "parameters": count.total,
        "vocabulary": loaded.config.vocab_size,
        "dtype": dtype or "as stored",
        **facts,
        "files": files,
    }


def _load(source: Path) -> tuple[Model, dict[str, Any], Path]:
    """The weights on the CPU, what is known of them, and where their tokenizer lies."""
    from headwater.model.hf import load_hf

    if (source / "config.json").is_file():
        return load_hf(source), {"step": None, "averaged": False}, source
    from headwater.engine.load import model_of
    from headwater.train.weights import load_weights

    weights = load_weights(source)
    return (
        model_of(weights),
        {"step": weights.step, "averaged": weights.averaged},
        RunFolder.of(source).tokenizer_path,
    )
