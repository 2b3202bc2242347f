"""Timing of a step of vitkit and the same step of a peer, its row in the table, and its figures as JSON."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from vitkit.bench.machine_load import LoadWatch, format_note, is_noisy
from vitkit.bench.timing import Step, alternate_timers, measure_peak, time_step
from vitkit.optim import group_parameters
from vitkit.support.files import write_json

DTYPES = ("float32", "bfloat16", "bf16-mixed")
LR, DECAY = 1e-4, 0.01  # weight decay: AdamW's default, and so that of `fit`
LEGEND = "speed-up is the peer's time / vitkit's: median of the pairs (first-third quartile); MB is the peak"
COLUMNS = (
    f"{'':68} {'per second':^17} {'':17} {'MB':^16}  {'/ matmul rate':>12}\n"
    f"{'model':10} {'dtype':10} threads {'step':20} count {'peer':12} {'vitkit':>8} {'peer':>8} {'speed-up':^17} "
    f"{'vitkit':>8} {'peer':>7}  vitkit  peer"
)


@dataclass(frozen=True)
class Settings:
    """The options of a comparison.

    Args:
        dtype: float32; bfloat16, also for weights and samples; or bf16-mixed, float32 weights under autocast.
        batch: samples in a step.
        pairs: number of timings of each of two steps.
    """

    dtype: str
    device: torch.device
    threads: int
    batch: int
    pairs: int
    compiled: bool

    @property
    def weight_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.dtype == "bfloat16" else torch.float32

    @property
    def matmul_dtype(self) -> torch.dtype:
        return torch.float32 if self.dtype == "float32" else torch.bfloat16

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == "bf16-mixed")


@dataclass(frozen=True)
class Ratio:
    """The ratios of paired timings."""

    median: float
    quartiles: tuple[float, float]
    pairs: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.median:5.2f} ({self.quartiles[0]:.2f}-{self.quartiles[1]:.2f})"


def compute_time_ratio(times: Sequence[float], others: Sequence[float]) -> Ratio:
    """Return the ratios of timings to other ones."""
    ratios = [time / other for time, other in zip(times, others, strict=True)]
    first, middle, third = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return Ratio(middle, (first, third), tuple(ratios))


@dataclass(frozen=True)
class Row:
    """A comparison of a step. Pairs of values are of vitkit and its peer.

    Args:
        samples: processed in a step.
        seconds: medians.
        memory: peak in bytes.
        rate: FLOP/s of a large matrix product. share: FLOP/s of the steps / rate.
    """

    model: str
    dtype: str
    threads: int
    step: str
    samples: int
    peer: str
    seconds: tuple[float, float]
    speedup: Ratio
    memory: tuple[int, int]
    rate: float | None = None
    share: tuple[float, float] | None = None

    def __str__(self) -> str:
        ours, theirs = (self.samples / seconds for seconds in self.seconds)
        text = (
            f"{self.model:10} {self.dtype:10} {self.threads:7} {self.step:20} {self.samples:5} {self.peer:12} "
            f"{ours:8.1f} {theirs:8.1f} {self.speedup} {self.memory[0] / 1e6:8,.0f} {self.memory[1] / 1e6:7,.0f}"
        )
        return text if self.share is None else f"{text}  {self.share[0]:6.1%} {self.share[1]:5.1%}"


class Workload(NamedTuple):
    """A step that both models compute: the first columns of its row."""

    model: str
    step: str
    samples: int
    peer: str


def build_optimizer(model: nn.Module, lr: float = LR) -> Optimizer:
    """Build the optimizer of `fit`, fused AdamW with its parameter groups, for either side."""
    return AdamW([group.options for group in group_parameters(model, lr, DECAY)], lr, fused=True)


def time_pair(
    settings: Settings,
    workload: Workload,
    steps: Sequence[Step],
    *,
    resident: Sequence[int] = (0, 0),
    flops: int = 0,
    rate: float | None = None,
) -> Row:
    """Time two steps in alternation.

    Args:
        steps: vitkit's and the peer's.
        resident: bytes in use before a step that count as its memory, for each.
        flops: of a step. rate: see Row; None leaves the share out.
    """
    model, step, samples, peer = workload
    print(f"timing {model} {settings.dtype} {step}, {peer}, threads={settings.threads} ...", file=sys.stderr)
    times = alternate_timers([partial(time_step, step, settings.device) for step in steps], settings.pairs)
    ours, theirs = map(median, times)
    memory = [size + measure_peak(step, settings.device) for size, step in zip(resident, steps, strict=True)]
    share = None if rate is None else (flops / ours / rate, flops / theirs / rate)
    return Row(
        model,
        settings.dtype,
        settings.threads,
        step,
        samples,
        peer,
        (ours, theirs),
        compute_time_ratio(times[1], times[0]),
        (memory[0], memory[1]),
        rate,
        share,
    )


def print_rows(header: str, rows: Iterable[Any], machine: Mapping[str, object], path: Path | None) -> int:
    """Print rows, which are dataclasses, as they come, and a note if other processes disturbed the timing.

    Args: path: of a JSON file for the machine and the rows with all their figures, or None.
    """
    print(header)
    figures: list[dict[str, Any]] = []
    watch = LoadWatch()
    for row in rows:
        share = watch.measure_share()
        figures.append({**asdict(row), "others": share})
        print(f"{row} *" if is_noisy(share) else row, flush=True)
    if note := format_note([figure["others"] for figure in figures]):
        print(note)
    if path is not None:
        write_json(path, {**machine, "rows": figures})
    return 0
