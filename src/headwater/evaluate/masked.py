"""Held-out loss and accuracy of a masked language model, for the evaluate stage of an encoder's run.

In: the run, the packed dataset it was trained on. Out: for every domain and all together, the cross-entropy in nats and
the share of right predictions of masked tokens, over the windows of the held-out split with one fixed set of masks,
made by the run's own objective. It has no perplexity and no bits per byte (a masked token is guessed from both sides,
so the guesses do not multiply to a probability of the text), hence nothing to set beside n-gram models or compressors,
and it continues no text; the result says so.

    evaluate_masked(run, TokenDataset.open(path), EvaluateConfig())["slices"][0]["accuracy"]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.dataset import TokenDataset
from headwater.dataset.loader import positions_of
from headwater.dataset.masking import IGNORE, Masking
from headwater.dataset.order import SampleRef
from headwater.engine.load import model_of, pick_device
from headwater.evaluate.config import EvaluateConfig
from headwater.model import BlockLayout, Encoder, cross_entropy
from headwater.tokenizer import Tokenizer
from headwater.train.config import TrainConfig
from headwater.train.run_folder import RunFolder
from headwater.train.weights import find_checkpoint, load_weights

KIND = "masked"
"""`kind` of the result, which tells it from that of a model that reads."""

EVALUATION_EPOCH = -2
"""Stands for the epoch of the masks: never those of training (from 0) or of validation on the way (-1)."""

NOT_MADE = {
    "baselines": "perplexity and bits per byte are not defined for a masked model, so neither n-gram models nor "
    "compressors can be compared with it",
    "samples": "an encoder continues no text",
}


def is_encoder(run: RunFolder) -> bool:
    """Whether a run trains an encoder."""
    return bool(run.record["model"].get("architecture") == "encoder")


def evaluate_masked(run: RunFolder, dataset: TokenDataset, config: EvaluateConfig) -> dict[str, Any]:
    """See the module. Reads each domain's first windows, until `config.max_tokens` tokens if that is set.

    InputError if the split holds no window, or not for this tokenizer.
    """
    tokenizer = Tokenizer.load(run.tokenizer_path)
    dataset.check_tokenizer(tokenizer)
    train = TrainConfig.model_validate(run.record["train"])
    model = model_of(load_weights(run.path)).to(pick_device(config.device)).eval()
    assert isinstance(model, Encoder)
    asked = train.objective
    masking = Masking(
        tokenizer,
        seed=run.record["seed"],
        mask_rate=asked.mask_rate,
        mask_token_rate=asked.mask_token_rate,
        random_token_rate=asked.random_token_rate,
        whole_word=asked.whole_word,
    )
    scorer = _Scorer(model, masking, config, train)
    slices = [scorer.domain(dataset, name) for name in dataset.split(config.split).domains]
    slices = [piece for piece in slices if piece["masked"]]
    if not slices:
        raise InputError(
            f"the {config.split} split has nothing to mask", where=str(dataset.path), mend="score another split"
        )
    return {
        "kind": KIND,
        "name": run.run_id,
        "step": find_checkpoint(run.path).step,
        "split": config.split,
        "protocol": {"objective": asked.model_dump(), "window": train.seq_len, "epoch": EVALUATION_EPOCH},
        "slices": [_pooled(slices), *slices],
        "not_made": NOT_MADE,
    }


class _Scorer:
    """Runs windows of a domain through the model."""

    def __init__(self, model: Encoder, masking: Masking, config: EvaluateConfig, train: TrainConfig) -> None:
        self._model, self._masking, self._config, self._train = model, masking, config, train

    def domain(self, dataset: TokenDataset, name: str) -> dict[str, Any]:
        seq_len = self._train.seq_len
        limit = self._config.max_tokens
        rows = max(1, self._config.batch_tokens // seq_len)
        waiting: list[tuple[int, NDArray[Any], NDArray[np.int32]]] = []
        sums = np.zeros(4)  # tokens, masked, nats, right
        for number, window in enumerate(dataset.iter_windows(self._config.split, name, seq_len)):
            if limit is not None and number * seq_len >= limit:
                break
            size = min(seq_len, len(window.tokens))
            if size < seq_len:  # the last one, of a length of its own
                sums += self._batch(name, [(number, window.tokens[:size], window.documents[:size])])
                continue
            waiting.append((number, window.tokens[:size], window.documents[:size]))
            if len(waiting) == rows:
                sums += self._batch(name, waiting)
                waiting = []
        if waiting:
            sums += self._batch(name, waiting)
        return {"name": name, **_figures(*sums)}

    @torch.no_grad()
    def _batch(self, name: str, windows: list[tuple[int, NDArray[Any], NDArray[np.int32]]]) -> NDArray[np.float64]:
        tokens = np.stack([window[1].astype(np.int64) for window in windows])
        documents = np.stack([window[2] for window in windows])
        seq_len = tokens.shape[1]
        refs = [SampleRef(number, name, number, EVALUATION_EPOCH, number, seq_len) for number, _, _ in windows]
        inputs, targets = self._masking.apply(tokens, documents, refs)
        model, device = self._model, next(self._model.parameters()).device
        positions = layout = None
        if self._train.document_mask:
            positions = torch.from_numpy(positions_of(documents)).to(device)
            layout = BlockLayout(torch.from_numpy(documents).to(device))
        hidden = model(torch.from_numpy(inputs).to(device), positions, layout)
        loss = cross_entropy(
            hidden,
            model.lm_head_weight,
            torch.from_numpy(targets).to(device),
            vocab_size=model.config.true_vocab_size,
            bias=model.lm_head_bias,
            sparse=True,
            accuracy=True,
        )
        assert loss.correct is not None
        return np.array([tokens.size, (targets != IGNORE).sum(), float(loss.nats), int(loss.correct)])


def _figures(tokens: float, masked: float, nats: float, right: float) -> dict[str, Any]:
    return {
        "tokens": int(tokens),
        "masked": int(masked),
        "nats": nats,
        "right": int(right),
        "loss": nats / masked if masked else None,
        "accuracy": right / masked if masked else None,
    }


def _pooled(slices: list[dict[str, Any]]) -> dict[str, Any]:
    sums = (sum(piece[key] for piece in slices) for key in ("tokens", "masked", "nats", "right"))
    return {"name": "all", **_figures(*sums)}


def masked_markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [
        f"# {result['name']}, step {result['step']:,}: masked tokens of the {result['split']} split",
        "",
        "| text | tokens | masked | loss (nats) | accuracy |",
        "|---|---:|---:|---:|---:|",
    ]
    for piece in result["slices"]:
        figures = f"{piece['tokens']:,} | {piece['masked']:,} | {piece['loss']:.4f} | {piece['accuracy']:.1%}"
        lines.append(f"| {piece['name']} | {figures} |")
    return "\n".join([*lines, "", *(f"No {name}: {why}." for name, why in result["not_made"].items()), ""])
