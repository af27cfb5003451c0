"""Taking rules back, and documents down: what a rule removed stays, unless another rule takes it.

Rules that look at one document are not asked; those that compare documents are asked, and what they say is not done, so
that everything else stays as it was.

    config = without_rules(config)       # as `curate.undo` says
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.errors import InputError, UserError

if TYPE_CHECKING:
    from headwater.curate.config import CurateConfig


def known_rules(config: CurateConfig) -> list[str]:
    """Every rule that a recipe can take back."""
    from headwater.curate.clean import TOO_SHORT, WRONG_LANGUAGE
    from headwater.curate.near import RULE_NAMES
    from headwater.curate.questions import RULE
    from headwater.curate.sift import rule_names
    from headwater.curate.site_lines import RULE as SITE_LINE

    return sorted({TOO_SHORT, WRONG_LANGUAGE, RULE, SITE_LINE, *rule_names(config.quality), *RULE_NAMES})


def check_rules(config: CurateConfig, rules: Sequence[str]) -> None:
    """Raises UserError for a rule that cannot be taken back."""
    known = known_rules(config)
    for rule in rules:
        if rule not in known:
            raise UserError(
                f"{rule!r} is no rule that can be taken back",
                where="curate.undo",
                mend=f"the rules are {', '.join(known)}",
            )


def without_rules(config: CurateConfig) -> CurateConfig:
    """The configuration with the rules of `undo` off that look at one document. Raises UserError for others."""
    check_rules(config, config.undo)
    undo = set(config.undo)
    quality = config.quality
    update: dict[str, Any] = {}
    if "clean.too-short" in undo:
        update["clean"] = config.clean.model_copy(update={"min_characters": 0})
    if "language.not-accepted" in undo:
        update["language"] = config.language.model_copy(update={"accepted": ()})
    if "decontaminate.question" in undo:
        update["decontaminate"] = config.decontaminate.model_copy(update={"benchmarks": ()})
    if "quality.classifier" in undo:
        quality = quality.model_copy(update={"classifier": quality.classifier.model_copy(update={"model": ""})})
    from headwater.curate.sift import asked

    if off := sorted(undo & {rule.name for rule in asked(quality)}):
        quality = quality.model_copy(update={"without": (*quality.without, *off)})
    return config.model_copy(update={**update, "quality": quality})


def takedown_ids(files: Sequence[str]) -> frozenset[str]:
    """Ids in files, one a line; blank lines and what follows a blank are passed over. Raises InputError."""
    ids: set[str] = set()
    for name in files:
        try:
            lines = Path(name).expanduser().read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the ids to take down: {error}", where=name) from error
        ids.update(line.split()[0] for line in lines if line.strip())
    return frozenset(ids)
