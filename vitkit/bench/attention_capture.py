"""`vitkit bench --attention`: what it takes to see attention, beside a plain forward pass and transformers' way.

Every row is a process of its own, as the greatest size of a process does not fall by itself.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn

from vitkit.bench.timing import seconds
from vitkit.interpret.see.capture import capture
from vitkit.models import SIZES, ViT, encoder
from vitkit.support.extras import require_package

SIZE, PATCH, PIXELS = "s", 16, 1024
PASSES = 3  # that are timed: the first makes kernels ready, and what else the machine does only adds
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
HEADER = """
S/16, one image, no gradients; peak is above what the loaded model takes, of the first pass; seconds are the least of
those after it; ratios are to the plain forward pass

what is kept                                 threads  peak MB   ratio   seconds   ratio   kept MB"""


Keeping = Callable[[], Sequence[Tensor]]  # a pass; what it keeps


class Found(TypedDict):
    peak: int
    seconds: float
    kept: int


@dataclass(frozen=True)
class Row:
    """`peak` and `kept` in bytes; `plain` are the peak and the seconds of the plain pass."""

    name: str
    threads: int
    peak: int
    seconds: float
    kept: int
    plain: tuple[int, float]

    def __str__(self) -> str:
        memory, took = self.plain
        return (
            f"{self.name:44} {self.threads:7} {self.peak / 1e6:8,.0f} {self.peak / memory:7.2f} {self.seconds:9.2f} "
            f"{self.seconds / took:7.2f} {self.kept / 1e6:9,.1f}"
        )


def compare(pixels: int, threads: int) -> Iterator[Row]:
    """Raises: ValueError for a size that patches do not divide, or where a row did not end well."""
    if pixels < PATCH or pixels % PATCH:
        raise ValueError(f"attention must be a multiple of {PATCH} pixels, got attention={pixels}")
    require_package("transformers", "bench --attention", extra="peers")
    first = None
    for name in RUNS:
        found = measured(name, pixels, threads)
        first = first or found
        yield Row(name, threads, **found, plain=(max(first["peak"], 1), first["seconds"]))


def measured(name: str, pixels: int, threads: int) -> Found:
    """In a fresh process. Raises: ValueError where it failed, as for want of memory."""
    command = [sys.executable, "-m", __name__, name, str(pixels), str(threads)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["killed, as for want of memory"])[-1]
        raise ValueError(f"{name} at {pixels} x {pixels} pixels failed with {run.returncode}: {last}")
    return json.loads(run.stdout)


def ours(pixels: int) -> tuple[nn.Module, Tensor]:
    return ViT(encoder(SIZE), (pixels, pixels), (PATCH, PATCH)).eval(), torch.randn(1, 3, pixels, pixels)


def plain(pixels: int) -> Keeping:
    model, image = ours(pixels)

    def step() -> Sequence[Tensor]:
        model(image)
        return ()

    return step


def cls_rows(pixels: int) -> Keeping:
    model, image = ours(pixels)

    def step() -> Sequence[Tensor]:
        with capture(model, queries=[0]) as found:
            model(image)
        return [seen.weights for seen in found.values()]

    return step


def one_head(pixels: int) -> Keeping:
    model, image = ours(pixels)

    def step() -> Sequence[Tensor]:
        with capture(model, -1, heads=[0]) as found:
            model(image)
        return [found.get_layer(0).weights]

    return step


def transformers(pixels: int) -> Keeping:
    from transformers import ViTConfig, ViTModel

    dim, depth, heads, ratio = SIZES[SIZE]
    config = ViTConfig(
        hidden_size=dim,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=int(dim * ratio),
        image_size=pixels,
        patch_size=PATCH,
    )
    config._attn_implementation = "eager"  # its fused way keeps no weights
    model, image = ViTModel(config).eval(), torch.randn(1, 3, pixels, pixels)
    return lambda: model(image, output_attentions=True).attentions


RUNS: dict[str, Callable[[int], Keeping]] = {
    "nothing: a plain forward pass": plain,
    "the CLS row of every layer": cls_rows,
    "the last layer, one head": one_head,
    "everything: transformers' output_attentions": transformers,
}


def process(name: str, pixels: int, threads: int) -> None:
    """One row, in this process, as JSON."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        step = RUNS[name](pixels)
        forget()
        before = greatest()
        kept = sum(x.nbytes for x in step())
        peak = greatest() - before
        took = min(seconds(step, torch.device("cpu")) for _ in range(PASSES))
    print(json.dumps(Found(peak=peak, seconds=took, kept=kept)))


def greatest() -> int:
    """The most bytes that this process has held, on Linux since `forget`."""
    if STATUS.exists():  # the rusage of a process begins with what its parent held
        return 1024 * int(STATUS.read_text().split("VmHWM:")[1].split()[0])
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def forget() -> None:
    """What loading a model took for a moment would hide what a pass takes; proc(5), "clear_refs"."""
    if CLEAR.exists():
        CLEAR.write_text("5")


if __name__ == "__main__":
    process(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
