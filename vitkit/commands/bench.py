"""`vitkit bench`: a ViT against timm's with the same weights, in one process; MAE; CLIP; loading; seeing attention."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.commands import attending, contrasting, loading, pretraining
from vitkit.commands.describe import describe
from vitkit.commands.timing import Step, alternate, matmul_rate, peak, processor, report
from vitkit.convert.timm import convert
from vitkit.devices import present
from vitkit.models import SIZES, ViT, encoder
from vitkit.nn.attention import fast_bfloat16
from vitkit.weights import load

LIMIT = 200  # seconds for one model in one dtype; what would take longer gets a smaller batch, or is skipped
MODELS = ("ti/16@224", "s/16@224", "ti/4@32")
HEADER = """
speed-up is timm's time / vitkit's: median of the pairs (least-greatest); share is of the matmul rate; MB is the peak

                                       milliseconds       speed-up        GFLOP/s     share             MB
model       dtype     step     batch    vitkit    timm                     matmul vitkit   timm   vitkit    timm"""


@dataclass(frozen=True)
class Figures:
    """Median seconds of a step, its FLOP/s over the matmul rate, and the most bytes held at once."""

    seconds: float
    share: float
    memory: int


@dataclass(frozen=True)
class Row:
    """`rate` is the machine's, in FLOP/s; `speedup` is timm's time / vitkit's: median over pairs, least, greatest."""

    model: str
    dtype: str
    step: str
    batch: int
    rate: float
    vitkit: Figures
    timm: Figures
    speedup: tuple[float, float, float]

    def __str__(self) -> str:
        own, peer, (middle, least, greatest) = self.vitkit, self.timm, self.speedup
        return (
            f"{self.model:11} {self.dtype:9} {self.step:8} {self.batch:5} {own.seconds * 1e3:9.1f} "
            f"{peer.seconds * 1e3:7.1f}   {middle:5.2f} ({least:.2f}-{greatest:.2f})  {self.rate / 1e9:9,.1f} "
            f"{own.share:6.1%} {peer.share:6.1%} {own.memory / 1e6:8,.0f} {peer.memory / 1e6:7,.0f}"
        )


class Kind(NamedTuple):
    """What is compared: a row's columns, what yields rows, and of what."""

    header: str
    compare: Callable[..., Iterator[Any]]
    names: Sequence[str] | None


class Shape(NamedTuple):
    size: str
    patch: int
    pixels: int


def parse(name: str) -> Shape:
    """SIZE/PATCH@PIXELS, such as ti/4@32."""
    parts = re.fullmatch(rf"({'|'.join(SIZES)})/([1-9]\d*)@([1-9]\d*)", name)
    if not parts or int(parts[3]) % int(parts[2]):
        sizes = ", ".join(SIZES)
        raise ValueError(f"model must be SIZE/PATCH@PIXELS, SIZE in {sizes}, PATCH dividing PIXELS, got model={name}")
    return Shape(parts[1], int(parts[2]), int(parts[3]))


def networks(shape: Shape) -> tuple[ViT, nn.Module, Tensor]:
    """vitkit's model, timm's with the same weights and outputs, and an image, (1, 3, pixels, pixels)."""
    size, patch, pixels = shape
    dim, depth, heads, ratio = SIZES[size]
    sizes = {"embed_dim": dim, "depth": depth, "num_heads": heads, "mlp_ratio": ratio}
    ours = ViT(encoder(size), (pixels, pixels), (patch, patch)).eval()
    peer = VisionTransformer(pixels, patch, **sizes, no_embed_class=True).eval()
    load(ours, convert(peer.state_dict(), (pixels // patch, pixels // patch)))
    image = torch.randn(1, 3, pixels, pixels)
    with torch.inference_mode():
        assert_close(ours(image), peer(image), rtol=1e-3, atol=1e-4)
    return ours, peer, image


def forward(model: nn.Module, images: Tensor) -> Step:
    return torch.inference_mode()(partial(model.eval(), images))


def training(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)

    def step() -> None:
        F.cross_entropy(model(images).float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def affordable(batch: int, pairs: int, flops: int, rate: float) -> int:
    """The batch, halved until all steps of two models fit into LIMIT; 0 where a single image does not."""
    image = 2 * (pairs + 3) * 4 * flops / (rate / 2)  # forward 1, training 3; half of the rate is typical
    while batch and batch * image > LIMIT:
        batch //= 2
    return batch


def compare(
    name: str, dtype: torch.dtype, device: torch.device, *, batch: int, pairs: int, compiled: bool
) -> Iterator[Row]:
    """A forward pass, then a training step: cross entropy, backward, AdamW."""
    ours, peer, image = networks(parse(name))
    rate = matmul_rate(dtype, device)
    flops = sum(stage.flops for stage in describe(ours, image))
    if not (batch := affordable(batch, pairs, flops, rate)):
        print(f"{name} in {dtype} is skipped: too slow at {rate / 1e9:.1f} GFLOP/s", file=sys.stderr)
        return
    weights = sum(parameter.numel() for parameter in ours.parameters()) * dtype.itemsize
    models = [model.to(device, dtype) for model in (ours, peer)]
    if compiled:
        for model in models:
            model.compile()
    images, labels = image.repeat(batch, 1, 1, 1).to(device, dtype), torch.zeros(batch, dtype=torch.long, device=device)
    # A backward pass costs two forward ones, and AdamW holds two numbers beside each weight: 3 both times.
    for kind, factor in (("forward", 1), ("training", 3)):
        print(f"timing {name} {dtype} {kind}, batch {batch} ...", file=sys.stderr)
        steps = [forward(model, images) if factor == 1 else training(model, images, labels) for model in models]
        times = alternate(steps[0], steps[1], pairs, device)
        own, theirs = (
            Figures(middle, factor * flops * batch / middle / rate, factor * weights + peak(step, device))
            for step, middle in zip(steps, map(median, times), strict=True)
        )
        ratios = [b / a for a, b in zip(*times, strict=True)]
        speedup = median(ratios), min(ratios), max(ratios)
        yield Row(name, str(dtype).removeprefix("torch."), kind, batch, rate, own, theirs, speedup)


def compared(kind: Kind, options: argparse.Namespace, device: torch.device, batch: int) -> Iterator[Any]:
    """A row for each comparison."""
    for name in kind.names or ():
        for dtype in options.dtype:
            settings = {"batch": batch, "pairs": options.pairs, "compiled": options.compile}
            yield from kind.compare(name, getattr(torch, dtype), device, **settings)


def load_pictures(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in ("size", "workers", "reduce", "pictures")}
    machine = {**loading.versions(), "processor": processor(torch.device("cpu")), **settings}
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ")
    rows = loading.compare(options.loading, rounds=options.pairs, **settings)
    return report(loading.HEADER, rows, machine, options.json)


def see_attention(options: argparse.Namespace) -> int:
    machine = {"processor": processor(torch.device("cpu")), "threads": torch.get_num_threads()}
    return report(attending.HEADER, attending.compare(options.attention), machine, options.json)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit bench", description="Time Vision Transformers against timm's.")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="SIZE/PATCH@PIXELS", help=" ".join(MODELS))
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, help="images in a step (default: 8 on a CPU, otherwise 256)")
    parser.add_argument("--pairs", type=int, default=7, help="how often either is timed (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: the fastest here)")
    parser.add_argument("--compile", action="store_true", help="torch.compile both models")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument(
        "--pretraining",
        nargs="+",
        choices=SIZES,
        metavar="SIZE",
        help=f"MAE of these sizes beside transformers' and lightly's, of {', '.join(SIZES)}; nothing else is timed",
    )
    parser.add_argument(
        "--contrast",
        nargs="+",
        choices=contrasting.TOWERS,
        metavar="SIZE",
        help=f"CLIPs of these sizes beside open_clip's, of {', '.join(contrasting.TOWERS)}; nothing else is timed",
    )
    parser.add_argument(
        "--attention",
        type=int,
        nargs="?",
        const=attending.PIXELS,
        metavar="PIXELS",
        help=f"what seeing attention in so large an image takes (default: {attending.PIXELS}); nothing else is timed",
    )
    pictures = parser.add_argument_group("loading pictures, against torchvision's ImageFolder")
    pictures.add_argument("--loading", metavar="FOLDER", help="class folders; models are not timed")
    pictures.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    pictures.add_argument("--size", type=int, default=224, help="what a model reads (default: %(default)s)")
    pictures.add_argument("--reduce", type=float, default=2.0, help="see data.reduce (default: %(default)g)")
    pictures.add_argument("--pictures", type=int, help="so many of them (default: all)")
    options = parser.parse_args(arguments)
    for name in options.models:
        parse(name)  # before minutes of timing
    if options.json and not options.json.parent.is_dir():
        raise ValueError(f"json must be in a folder that exists, got json={options.json}")
    device = present(options.device)
    batch = (8 if device.type == "cpu" else 256) if options.batch is None else options.batch
    if options.pairs < 1 or batch < 1:
        raise ValueError(f"pairs and batch must be at least 1, got pairs={options.pairs}, batch={batch}")

    if options.loading:
        return load_pictures(options)
    if options.attention is not None:
        return see_attention(options)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's banners
    torch.manual_seed(0)
    machine = {"torch": version("torch"), "timm": version("timm"), "processor": processor(device)}
    machine |= {"threads": torch.get_num_threads(), "compiled": options.compile}
    print(*(f"{name} {value}" for name, value in machine.items()), sep=", ")
    if "bfloat16" in options.dtype:
        if not options.contrast:
            print("bfloat16: weights and images cast by .to(torch.bfloat16), no autocast")
        if not fast_bfloat16(device.type):
            print("bfloat16 is emulated by this processor: its figures say nothing about others")
    kinds = (
        Kind(pretraining.HEADER, pretraining.compare, options.pretraining),
        Kind(contrasting.HEADER, contrasting.compare, options.contrast),
        Kind(HEADER, compare, options.models),
    )
    kind = next(kind for kind in kinds if kind.names)
    return report(kind.header, compared(kind, options, device, batch), machine, options.json)
