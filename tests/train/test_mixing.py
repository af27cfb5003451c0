"""A run with `train.mixing`: the plan is said before it is applied, stands in the ledger, and no cap is passed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from headwater.core.errors import RecipeError
from headwater.core.progress import Reporter
from headwater.dataset import TokenDataset
from headwater.train.config import TrainConfig
from headwater.train.ledger import RunLedger
from headwater.train.mixing import mixed
from headwater.train.phases import plan_run
from tests.train.conftest import World
from tests.train.test_run import small_run

MIXTURE = {"web": 0.05, "code": 0.95}


def test_a_plan_is_said_then_recorded_and_read(world: World, tmp_path: Path) -> None:
    said = io.StringIO()
    reporter = Reporter(console=Console(file=said, width=160))
    sizes = TokenDataset.open(world.dataset).split("train").sizes
    assert set(sizes) == set(MIXTURE)
    cap = 6 * 4 * 32 * 0.5 / sizes["code"]  # half of what the run reads
    mixing = {"shortfall": "fill", "max_repeats": {"code": cap}}
    run = small_run(world, tmp_path / "run", reporter, mixture=MIXTURE, mixing=mixing)
    text = said.getvalue()
    assert "mixture of steps 1 to 6" in text
    assert "that capped domains lack come from others" in text
    assert text.index("mixture of steps") < text.index("parameters")
    (setting,) = RunLedger(run.ledger_path).order_settings()
    assert setting.mixture is not None
    assert sum(setting.mixture.values()) == 65_536
    assert setting.mixture["code"] / 65_536 < 0.5
    code = max(line["domain_tokens"]["code"] for line in run.metrics() if "domain_tokens" in line)
    assert code <= 6 * 4 * 32 * 0.5


def test_a_run_is_refused_with_the_numbers(world: World) -> None:
    config = TrainConfig(steps=6, global_batch=4, seq_len=32, mixture=MIXTURE, mixing={"max_repeats": {"code": 0.001}})  # type: ignore[arg-type]
    split = TokenDataset.open(world.dataset).split("train")
    with pytest.raises(RecipeError, match=r"domain 'code' would give 730 tokens, but has [\d,]+ and may be read 0.001"):
        mixed(plan_run(config), config, split, Reporter(quiet=True))
    plain = config.model_copy(update={"mixing": None})
    assert mixed(plan_run(plain), plain, split, Reporter(quiet=True)) == plan_run(plain)
