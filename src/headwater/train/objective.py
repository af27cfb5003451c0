"""The `train.objective` section: what the model is asked, and the loader's part in it.

In: the section, a tokenizer, a dataset's domains. Out: what changes the batches (`headwater.dataset.objective`). The
configuration imports no torch.

    ObjectiveConfig(name="mlm", mask_rate=0.3)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from headwater.core.config import Section, field
from headwater.core.errors import RecipeError

if TYPE_CHECKING:
    from headwater.dataset.objective import Objective
    from headwater.model.config import ModelConfig
    from headwater.parallel.config import ParallelConfig
    from headwater.tokenizer import Tokenizer
    from headwater.train.config import TrainConfig

OBJECTIVE_PATHS = {
    **dict.fromkeys(("mask_rate", "mlm_probability", "masked_lm_prob"), "objective.mask_rate"),
    "fim_rate": "objective.fim_rate",
    **dict.fromkeys(("fim_spm_rate", "spm_rate"), "objective.spm_rate"),
}
"""Flat names of other trainers."""

_PARAMETERS = {
    "causal": (),
    "fim": ("fim_rate", "spm_rate", "fim_domains"),
    "mlm": ("mask_rate", "mask_token_rate", "random_token_rate", "whole_word"),
}


class ObjectiveConfig(Section):
    """The objective and its parameters. Every choice follows from seed, epoch, sample and position (or document)."""

    SHORT: ClassVar[str] = "name"

    name: Literal["causal", "fim", "mlm"] = field("causal")
    """causal: the next token. fim: the next token, with documents of code domains rearranged so that the model learns
    to fill in the middle (Bavarian et al. 2022). mlm: masked words, by an encoder (`model.architecture: encoder`)."""

    fim_rate: float = field(0.5, unit="ratio", ge=0, le=1)
    """fim: share of the documents of `fim_domains` that are rearranged."""

    spm_rate: float = field(0.5, unit="ratio", ge=0, le=1)
    """fim: of these, the share with the suffix first (SPM); the others are prefix, suffix, middle (PSM)."""

    fim_domains: tuple[str, ...] = field(("code",))
    """fim: the domains that hold code; the others are read as they are."""

    mask_rate: float = field(0.15, unit="ratio", gt=0, lt=1)
    """mlm: share of the text that is predicted."""

    mask_token_rate: float = field(0.8, unit="ratio", ge=0, le=1)
    """mlm: of the predicted tokens, the share replaced by the mask token."""

    random_token_rate: float = field(0.1, unit="ratio", ge=0, le=1)
    """mlm: of the predicted tokens, the share replaced by random ones; the rest stays as it is."""

    whole_word: bool = field(True)
    """mlm: words are masked whole, Chinese ones too; false: single tokens."""

    @property
    def scored_ratio(self) -> float:
        """Share of the tokens whose logits are made."""
        return self.mask_rate if self.name == "mlm" else 1.0

    @model_validator(mode="before")
    @classmethod
    def _accept_the_name_alone(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _parameters_fit(self) -> ObjectiveConfig:
        for owner, names in _PARAMETERS.items():
            for name in names:
                if owner != self.name and getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"objective.{name} has no effect on objective {self.name}"
                        f"\n  mend: remove it, or set objective.name to {owner}"
                    )
        if self.mask_token_rate + self.random_token_rate > 1 + 1e-9:
            raise ValueError(
                f"mask_token_rate {self.mask_token_rate:g} and random_token_rate {self.random_token_rate:g} add up to "
                "more than 1"
            )
        if self.name == "fim" and not self.fim_domains:
            raise ValueError("objective fim needs fim_domains\n  mend: name the domains that hold code")
        return self


def objective_problems(
    train: TrainConfig, model: ModelConfig, parallel: ParallelConfig
) -> Iterator[tuple[str, str, str]]:
    """(field, what, mend) of everything that keeps a model from being trained with its objective."""
    masked, encoder = train.objective.name == "mlm", model.architecture == "encoder"
    if masked and not encoder:
        yield (
            "train.objective",
            "masked language modelling needs a model that sees both sides, and a decoder reads left to right",
            "set model.architecture: encoder",
        )
    if encoder and not masked:
        yield (
            "train.objective",
            f"an encoder sees the token that objective {train.objective.name} asks for",
            "set train.objective: mlm",
        )
    if encoder and parallel.cp > 1:
        yield (
            "parallel.cp",
            f"context parallelism (cp {parallel.cp}) is not made for attention that sees both sides",
            "set parallel.cp: 1; dp, tp and pp divide an encoder's work",
        )
    if encoder and train.sampling.every:
        yield "train.sampling.every", "an encoder writes no text, so there is nothing to sample", "remove it"


def build_objective(
    config: ObjectiveConfig, tokenizer: Tokenizer, domains: Collection[str], seed: int
) -> Objective | None:
    """What the loader does to the batches of a run; None where it is nothing.

    RecipeError if no domain of the dataset is one that `fim_domains` names; InputError if the tokenizer lacks what the
    objective needs.
    """
    if config.name == "causal":
        return None
    if config.name == "fim":
        from headwater.dataset.fim import FillInTheMiddle
        from headwater.dataset.objective import InfilledMiddles

        if unknown := [name for name in config.fim_domains if name not in domains]:
            raise RecipeError(
                f"the training split has no domain {', '.join(unknown)}",
                where="train.objective.fim_domains",
                mend=f"name those that hold code; it has {', '.join(sorted(domains))}",
            )
        fim = FillInTheMiddle(
            tokenizer, seed=seed, domains=config.fim_domains, rate=config.fim_rate, spm_rate=config.spm_rate
        )
        return InfilledMiddles(fim)
    from headwater.dataset.masking import Masking
    from headwater.dataset.objective import MaskedWords

    masking = Masking(
        tokenizer,
        seed=seed,
        mask_rate=config.mask_rate,
        mask_token_rate=config.mask_token_rate,
        random_token_rate=config.random_token_rate,
        whole_word=config.whole_word,
    )
    return MaskedWords(masking)
