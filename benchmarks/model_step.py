"""Training steps a second: Headwater's decoder beside `transformers` and a plain loop, interleaved in one run.

One step is forward, loss, backward, clipping and fused AdamW on the same batch, from the same weights, so the losses
must agree. The three take turns step by step, so a busy machine slows all alike. Medians; times are processor time
(all threads together), which other programs disturb less than the clock, and the clock's beside it.

    python benchmarks/model_step.py --threads 1                  # quickstart's shape: 3.4M parameters, 16 x 512 tokens
    python benchmarks/model_step.py --dtype bf16 --steps 5 --hidden 256 --heads 8 --kv-heads 4
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.model import Decoder, ModelConfig, cross_entropy, init_weights
from headwater.model.hf_config import config_to_hf

Loss = Callable[[Tensor, Tensor], Tensor]


class PlainBlock(nn.Module):
    """What a person writes first: separate projections, halves rotated, SDPA, SwiGLU."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.c = c
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q, self.k, self.v = (nn.Linear(c.hidden_size, n, bias=False) for n in (q, kv, kv))
        self.o = nn.Linear(q, c.hidden_size, bias=False)
        self.gate, self.up = (nn.Linear(c.hidden_size, c.intermediate_size, bias=False) for _ in range(2))
        self.down = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.norm1, self.norm2 = (nn.RMSNorm(c.hidden_size, c.rms_norm_eps) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(batch, seq, -1, self.c.head_dim).transpose(1, 2) for m in (self.q, self.k, self.v))
        q, k = (_halves(t, cos, sin).to(v.dtype) for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        x = x + self.o(y.transpose(1, 2).reshape(batch, seq, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Plain(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(c.true_vocab_size, c.hidden_size)
        self.blocks = nn.ModuleList(PlainBlock(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        half = torch.arange(0, self.c.head_dim, 2) / self.c.head_dim
        angles = torch.outer(torch.arange(tokens.shape[1]), 1 / self.c.rope_theta**half)
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def headwater_loss(model: Decoder) -> Loss:
    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        sums = cross_entropy(model(tokens), model.lm_head_weight, targets, vocab_size=model.config.true_vocab_size)
        return sums.total / sums.count

    return loss


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers, whatever the model calls them."""
    if isinstance(model, Plain):
        return list(model.blocks)
    layers = model.get_submodule("model.layers")
    return list(layers.values() if isinstance(layers, nn.ModuleDict) else layers.children())


def peers(config: ModelConfig) -> dict[str, tuple[nn.Module, Loss]]:
    """The three models with equal weights, and how each makes its loss."""
    ours = Decoder(config)
    init_weights(ours, 0)
    plain = Plain(config)
    ours_by_name = dict(ours.named_parameters())
    rename = {"embed": "model.embed_tokens", "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
    rename |= {n: f"self_attn.{n}_proj" for n in "qkvo"} | {n: f"mlp.{n}_proj" for n in ("gate", "up", "down")}
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parts = name.split(".")
            if parts[0] == "blocks":
                source = f"model.layers.{parts[1]}.{rename[parts[2]]}.weight"
            else:
                source = "model.norm.weight" if parts[0] == "norm" else f"{rename[parts[0]]}.weight"
            parameter.copy_(ours_by_name[source][: parameter.shape[0]])
    result: dict[str, tuple[nn.Module, Loss]] = {
        "headwater": (ours, headwater_loss(ours)),
        "plain": (plain, plain),
    }
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("transformers is not installed: without it")
        return result
    theirs = LlamaForCausalLM(LlamaConfig.from_dict(config_to_hf(config)))
    theirs.load_state_dict({n: p[: config.true_vocab_size] for n, p in ours_by_name.items()}, strict=False)

    def hf_loss(tokens: Tensor, targets: Tensor) -> Tensor:
        logits = theirs(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    result["transformers"] = (theirs, hf_loss)
    return result


def run(
    config: ModelConfig, dtype: str, batch: int, seq: int, steps: int, compiled: bool
) -> dict[str, dict[str, float]]:
    generator = torch.Generator().manual_seed(0)
    window = torch.randint(0, config.true_vocab_size, (batch, seq + 1), generator=generator)
    tokens, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    models = peers(config)
    if compiled:
        for model, _ in models.values():
            for block in blocks_of(model):
                block.compile()
    optimizers = {n: torch.optim.AdamW(m.parameters(), 1e-3, fused=True) for n, (m, _) in models.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    losses: dict[str, float] = {}
    for step in range(steps + 1):  # the first warms up
        for name, (model, loss_of) in models.items():
            cpu, wall = time.process_time(), time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
                loss = loss_of(tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad()
            if step:
                seconds[name].append((time.process_time() - cpu, time.perf_counter() - wall))
            else:
                losses[name] = float(loss.detach())
    result = {}
    for name, times in seconds.items():
        cpu, wall = statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)
        result[name] = {
            "cpu_seconds": cpu,
            "seconds": wall,
            "tokens_per_second": batch * seq / wall,
            "loss": losses[name],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = {"hidden": 192, "layers": 6, "heads": 6, "kv-heads": 6, "ffn": 512, "vocab": 4096}
    for name, default in (sizes | {"batch": 16, "seq": 512, "steps": 3, "threads": 1}).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "both"), default="both")
    parser.add_argument("--compile", action="store_true", help="compile the blocks of all three (a minute or two)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    config = ModelConfig(
        hidden_size=a.hidden,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads,
        intermediate_size=a.ffn,
        vocab_size=a.vocab,
        max_position_embeddings=a.seq,
        tie_word_embeddings=True,
    )
    dtypes = ("fp32", "bf16") if a.dtype == "both" else (a.dtype,)
    results = {dtype: run(config, dtype, a.batch, a.seq, a.steps, a.compile) for dtype in dtypes}
    versions = {"torch": torch.__version__}
    if "transformers" in results[dtypes[0]]:
        import transformers

        versions["transformers"] = transformers.__version__
    if a.json:
        print(json.dumps({"versions": versions, "config": vars(a), "results": results}))
        return
    print(f"{config.parameter_count().total:,} parameters, {a.batch} x {a.seq} tokens, {a.threads} threads, {versions}")
    for dtype, rows in results.items():
        ours = rows["headwater"]["cpu_seconds"]
        for name, row in rows.items():
            print(
                f"{dtype}  {name:13} {row['cpu_seconds']:7.3f} s processor  {row['seconds']:7.3f} s clock  "
                f"{row['tokens_per_second']:8,.0f} tokens/s  {row['cpu_seconds'] / ours:5.2f} x ours  "
                f"loss {row['loss']:.4f}"
            )


if __name__ == "__main__":
    main()
