"""What is to be trained on what terms, and one way to lay it out over GPUs.

`TrainSpec` is the work (tokens, sequence, batch, precision, software); `Layout` one candidate answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import InputError

from .cases import Schedule
from .hardware import PRECISIONS
from .precision import LINEAR, WHOLE

# Bytes of optimizer state a parameter, master weight included.
OPTIMIZERS = {"adamw": 12.0, "adamw-bf16": 8.0, "adamw-8bit": 6.0, "muon": 8.0, "sgd": 8.0}
SCHEDULE_NAMES = {
    "gpipe": Schedule.GPIPE,
    "1f1b": Schedule.ONE_F_ONE_B,
    "interleaved_1f1b": Schedule.INTERLEAVED,
    "interleaved_zero_bubble": Schedule.INTERLEAVED_ZB,
    "zbv": Schedule.ZB_V,
    "dualpipev": Schedule.DUALPIPE_V,
    "zb_h1": Schedule.ZB_H1,
    "zb_h2": Schedule.ZB_H2,
    "zb_1p": Schedule.ZB_1P,
    "zb_2p": Schedule.ZB_2P,
    "dualpipe": Schedule.DUALPIPE,
}
RUNNABLE_SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev")


@dataclass(frozen=True)
class TrainSpec:
    """The work. `tokens` in all, `seq` and `global_batch` (samples) a step; `unique_tokens` of data before repeats."""

    tokens: float
    seq: int
    global_batch: int
    precision: str = "bf16"
    stack: str = "headwater"
    optimizer: str = "adamw"
    unique_tokens: float = 0.0  # 0: as many as tokens
    warmup_batch_tokens: float = 0.0  # tokens trained at a smaller, ramping batch
    evaluation_share: float = 0.01  # of the run spent on evaluation and other pauses; assumed

    def __post_init__(self) -> None:
        checks = (
            ("tokens", self.tokens, 1.0, 1e17),
            ("seq", self.seq, 1, 1e9),
            ("global_batch", self.global_batch, 1, 1e8),
        )
        for name, value, least, most in checks:
            if not least <= value <= most:
                raise InputError(f"{name} is {value:g}", where="train", mend=f"from {least:g} to {most:g}")
        if self.precision not in PRECISIONS:
            raise InputError(
                f"unknown precision {self.precision!r}", where="precision", mend=f"one of {', '.join(PRECISIONS)}"
            )
        if self.optimizer not in OPTIMIZERS:
            raise InputError(
                f"unknown optimizer {self.optimizer!r}", where="optimizer", mend=f"one of {', '.join(OPTIMIZERS)}"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps, the last one perhaps short."""
        return max(1, -(-int(self.tokens) // (self.seq * self.global_batch)))

    def case_fields(self) -> dict[str, float]:
        size, kind = LINEAR[self.precision]
        return {
            "seq": float(self.seq),
            "global_batch": float(self.global_batch),
            "linear_bytes": size,
            "quantised": float(kind),
            "optimizer_bytes": OPTIMIZERS[self.optimizer] - (4.0 if self.precision in WHOLE else 0.0),
        }


@dataclass(frozen=True)
class Layout:
    """One layout. GPUs = tp * pp * dp * cp; `shard` of the dp ranks share state (all of them unless hybrid)."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    chunks: int = 1
    micro_batch: int = 1
    zero: int = 1
    shard: int = 0  # 0: dp
    schedule: str = "1f1b"
    recompute: float = 0.0  # share of layers computed again
    recompute_light: bool = False  # "selective": all but multiplies and attention again
    recompute_core: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard", self.shard or self.dp)
        for name in ("tp", "pp", "dp", "cp", "ep", "chunks", "micro_batch", "shard"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", where="layout", mend="at least 1")
        if self.dp % self.shard:
            raise InputError(f"shard group {self.shard} does not divide dp {self.dp}", where="layout")
        if self.schedule not in SCHEDULE_NAMES:
            known = ", ".join(SCHEDULE_NAMES)
            raise InputError(f"unknown schedule {self.schedule!r}", where="layout", mend=f"one of {known}")
        if not 0.0 <= self.recompute <= 1.0:
            raise InputError(f"recompute share {self.recompute}", where="layout", mend="from 0 to 1")

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    def case_fields(self) -> dict[str, float]:
        kind = SCHEDULE_NAMES[self.schedule] if self.pp > 1 else Schedule.NONE
        return {
            "tp": float(self.tp),
            "pp": float(self.pp),
            "dp": float(self.dp),
            "cp": float(self.cp),
            "ep": float(self.ep),
            "chunks": float(self.chunks),
            "micro_batch": float(self.micro_batch),
            "zero": float(self.zero),
            "shard_group": float(self.shard * self.cp),
            "schedule": float(kind),
            "recompute": float(self.recompute),
            "recompute_light": float(self.recompute_light),
            "recompute_core": float(self.recompute_core),
        }

    def describe(self) -> str:
        """`tp 8 x pp 8 x dp 64, ZeRO 1, interleaved_1f1b x 4, micro-batch 1, recompute none`."""
        sizes = f"tp {self.tp} x pp {self.pp} x dp {self.dp}" + (f" x cp {self.cp}" if self.cp > 1 else "")
        sizes += f", ep {self.ep}" if self.ep > 1 else ""
        zero = f"ZeRO {self.zero}" + (f" over {self.shard}" if self.zero and self.shard != self.dp else "")
        pipe = f", {self.schedule}" + (f" x {self.chunks}" if self.chunks > 1 else "") if self.pp > 1 else ""
        again = "selective" if self.recompute_light else "none"
        if self.recompute > 0:
            again = "full" if self.recompute == 1 else f"{self.recompute:.0%} of layers"
        return f"{sizes}, {zero}{pipe}, micro-batch {self.micro_batch}, recompute {again}"
