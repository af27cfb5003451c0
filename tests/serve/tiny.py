"""Small models saved as Hugging Face folders, and servers of them as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from headwater.model import Decoder, ModelConfig, init_weights, save_hf
from headwater.serve import ServeConfig
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.training import train_model

LINES = (
    "The river runs from the headwater to the sea, and the sea gives it back as rain.",
    "半亩方塘一鉴开，天光云影共徘徊。问渠那得清如许？为有源头活水来。",
    "def flow(source):\n    return source + 1\n",
    "Streams meet, and no one asks which of them was first.",
    "千里之行，始于足下；水滴石穿，非一日之功。",
)

CHAIN = "the stream源头🌊 flows.\n"
"""What the chain model says, over and over. No token of it occurs twice."""


def make_tokenizer(folder: Path) -> Tokenizer:
    """A bilingual vocabulary of 640 tokens; emoji are spelled in bytes."""
    model = train_model(LINES * 4, TokenizerConfig(vocab_size=640))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    return Tokenizer.load(folder)


def random_model(tokenizer: Tokenizer, context: int = 8192) -> Decoder:
    """Untrained: every token is about as likely as any other."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
    )
    model = Decoder(config)
    init_weights(model, seed=1)
    return model


def chain_model(tokenizer: Tokenizer) -> Decoder:
    """Sure of what comes after each token of `CHAIN`: the next one, and after the last the first."""
    chain = tokenizer.encode(CHAIN)
    assert len(set(chain)) == len(chain), [tokenizer.decode([token]) for token in chain]
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=8192,
    )
    model = Decoder(config)
    init_weights(model, seed=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()  # what is left is a function of the last token
        embedding = torch.randn(parameter_rows(model), 128, generator=torch.Generator().manual_seed(3))
        embedding /= embedding.norm(dim=1, keepdim=True)
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head_weight.zero_()
        for token, after in zip(chain, chain[1:] + chain[:1], strict=True):
            model.lm_head_weight[after] = embedding[token] * 3
    return model


def parameter_rows(model: Decoder) -> int:
    return model.config.padded_vocab_size


def save(model: Decoder, tokenizer: Tokenizer, folder: Path) -> Path:
    save_hf(model, folder, tokenizer_files=tokenizer.export_hf, eos_token_id=tokenizer.eos_id)
    return folder


@dataclass(frozen=True)
class Server:
    """A running server. `url` ends in /v1; `root` does not."""

    process: subprocess.Popen[str]
    url: str
    line: str

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")


START = """
import json, sys
from headwater.cli.common import until_stopped
from headwater.serve import ServeConfig, serve
until_stopped(lambda: serve(sys.argv[1], ServeConfig(**json.loads(sys.argv[2]))))
"""


@contextmanager
def running(folder: Path, key: str | None = None, **settings: object) -> Iterator[Server]:
    """Serve a folder in a process of its own until the block ends."""
    config = ServeConfig(port=0, **settings)  # type: ignore[arg-type]
    environment = {name: value for name, value in os.environ.items() if name != "HEADWATER_API_KEY"}
    environment |= {"OMP_NUM_THREADS": "1"} | ({"HEADWATER_API_KEY": key} if key else {})
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(folder), json.dumps(config.model_dump())],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), f"the server ended with {process.wait(10)}"
        yield Server(process, line.split(" at ")[1].split()[0], line)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(20)
