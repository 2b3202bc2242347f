"""`vitkit bench --attention`: the cost of capturing attention weights, beside a plain pass and transformers.

Every row is measured in a new process, as the peak memory of a process does not fall.
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

from vitkit.bench.timing import time_step
from vitkit.interpret.see.capture import capture
from vitkit.models import SIZES, ViT, encoder
from vitkit.support.extras import require_package

SIZE, PATCH, PIXELS = "s", 16, 1024
PASSES = 3  # timed after the first, which prepares kernels; the fastest counts, as other load only adds
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
HEADER = """
S/16, one image, no gradients; peak: of the first pass, beyond the memory of the loaded model; seconds: the fastest of
the later passes; ratios: to the plain forward pass

what is kept                                  threads  peak MB   ratio   seconds   ratio   kept MB"""


ForwardPass = Callable[[], Sequence[Tensor]]  # returns the weights that it keeps


class CaptureCost(TypedDict):
    peak: int
    seconds: float
    kept: int


@dataclass(frozen=True)
class Row:
    """The cost of a pass, `peak` and `kept` in bytes. `plain` are the peak and the seconds of the plain pass."""

    name: str
    threads: int
    peak: int
    seconds: float
    kept: int
    plain: tuple[int, float]

    def __str__(self) -> str:
        memory, seconds = self.plain
        return (
            f"{self.name:44} {self.threads:7} {self.peak / 1e6:8,.0f} {self.peak / memory:7.2f} {self.seconds:9.2f} "
            f"{self.seconds / seconds:7.2f} {self.kept / 1e6:9,.1f}"
        )


def compare(pixels: int, threads: int) -> Iterator[Row]:
    """Yield a row for each of RUNS. Raises: ValueError if patches do not divide the size, or a process fails."""
    if pixels < PATCH or pixels % PATCH:
        raise ValueError(f"attention must be a multiple of {PATCH} pixels, got attention={pixels}")
    require_package("transformers", "bench --attention", extra="peers")
    first = None
    for name in RUNS:
        cost = run_process(name, pixels, threads)
        first = first or cost
        yield Row(name, threads, **cost, plain=(max(first["peak"], 1), first["seconds"]))


def run_process(name: str, pixels: int, threads: int) -> CaptureCost:
    """Measure a row in a new process. Raises: ValueError if it fails, as for lack of memory."""
    command = [sys.executable, "-m", __name__, name, str(pixels), str(threads)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["killed, as for lack of memory"])[-1]
        raise ValueError(f"{name} at {pixels} x {pixels} pixels failed with {run.returncode}: {last}")
    return json.loads(run.stdout)


def build_vit(pixels: int) -> tuple[nn.Module, Tensor]:
    return ViT(encoder(SIZE), (pixels, pixels), (PATCH, PATCH)).eval(), torch.randn(1, 3, pixels, pixels)


def prepare_plain(pixels: int) -> ForwardPass:
    model, image = build_vit(pixels)

    def step() -> Sequence[Tensor]:
        model(image)
        return ()

    return step


def prepare_cls_rows(pixels: int) -> ForwardPass:
    model, image = build_vit(pixels)

    def step() -> Sequence[Tensor]:
        with capture(model, queries=[0]) as layers:
            model(image)
        return [layer.weights for layer in layers.values()]

    return step


def prepare_one_head(pixels: int) -> ForwardPass:
    model, image = build_vit(pixels)

    def step() -> Sequence[Tensor]:
        with capture(model, -1, heads=[0]) as layers:
            model(image)
        return [layers.get_layer(0).weights]

    return step


def prepare_transformers(pixels: int) -> ForwardPass:
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
    config._attn_implementation = "eager"  # the fused implementation returns no weights
    model, image = ViTModel(config).eval(), torch.randn(1, 3, pixels, pixels)
    return lambda: model(image, output_attentions=True).attentions


RUNS: dict[str, Callable[[int], ForwardPass]] = {
    "nothing: a plain forward pass": prepare_plain,
    "the CLS row of every layer": prepare_cls_rows,
    "the last layer, one head": prepare_one_head,
    "everything: transformers' output_attentions": prepare_transformers,
}


def print_cost(name: str, pixels: int, threads: int) -> None:
    """Measure a row in this process and print it as JSON."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        step = RUNS[name](pixels)
        reset_peak_memory()
        before = read_peak_memory()
        kept = sum(x.nbytes for x in step())
        peak = max(0, read_peak_memory() - before)  # the kernel's count of pages may lag by a few
        seconds = min(time_step(step, torch.device("cpu")) for _ in range(PASSES))
    print(json.dumps(CaptureCost(peak=peak, seconds=seconds, kept=kept)))


def read_peak_memory() -> int:
    """Return the peak memory of this process in bytes; on Linux, the peak since `reset_peak_memory`."""
    if STATUS.exists():  # rusage starts at the parent's memory
        return 1024 * int(STATUS.read_text().split("VmHWM:")[1].split()[0])
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def reset_peak_memory() -> None:
    """Reset the peak memory of this process, which loading a model may have raised (proc(5), "clear_refs")."""
    if CLEAR.exists():
        CLEAR.write_text("5")


if __name__ == "__main__":
    print_cost(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
