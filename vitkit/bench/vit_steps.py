"""`vitkit bench`: forward passes and training steps of a ViT, beside timm's with the same weights, in one process."""

import re
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bench.peers import COLUMNS, LEGEND, Row, Settings, Workload, build_optimizer, time_pair
from vitkit.bench.timing import Step, measure_matmul_rate
from vitkit.bundle.weights import load
from vitkit.convert.timm.tensors import to_vitkit
from vitkit.inference.stages import measure_stages
from vitkit.models import SIZES, ViT, encoder

LIMIT = 400  # seconds for one model in one dtype; a slower one gets a smaller batch, or is skipped
MODELS = ("ti/16@224", "s/16@224", "ti/4@32")
HEADER = f"""
training: cross entropy, backward, fused AdamW as `fit` builds it, on both sides
{LEGEND}
{COLUMNS}"""


class Shape(NamedTuple):
    size: str
    patch: int
    pixels: int


def parse_shape(name: str) -> Shape:
    """Return the shape of SIZE/PATCH@PIXELS, such as ti/4@32. Raises: ValueError for another name."""
    parts = re.fullmatch(rf"({'|'.join(SIZES)})/([1-9]\d*)@([1-9]\d*)", name)
    if not parts or int(parts[3]) % int(parts[2]):
        sizes = ", ".join(SIZES)
        raise ValueError(f"model must be SIZE/PATCH@PIXELS, SIZE in {sizes}, PATCH dividing PIXELS, got model={name}")
    return Shape(parts[1], int(parts[2]), int(parts[3]))


def build_peer(shape: Shape, classes: int = 1000) -> VisionTransformer:
    dim, depth, heads, ratio = SIZES[shape.size]
    sizes = {"embed_dim": dim, "depth": depth, "num_heads": heads, "mlp_ratio": ratio}
    return VisionTransformer(shape.pixels, shape.patch, **sizes, num_classes=classes, no_embed_class=True)


def build_vits(shape: Shape) -> tuple[ViT, nn.Module, Tensor]:
    """Return vitkit's model, timm's with the same weights and outputs, and an image, (1, 3, pixels, pixels)."""
    size, patch, pixels = shape
    ours = ViT(encoder(size), (pixels, pixels), (patch, patch)).eval()
    peer = build_peer(shape).eval()
    load(ours, to_vitkit(peer.state_dict(), (pixels // patch, pixels // patch)))
    image = torch.randn(1, 3, pixels, pixels)
    with torch.inference_mode():
        assert_close(ours(image), peer(image), rtol=1e-3, atol=1e-4)
    return ours, peer, image


def make_forward_step(model: nn.Module, images: Tensor, settings: Settings) -> Step:
    model.eval()

    @torch.inference_mode()
    def step() -> Tensor:
        with settings.autocast():
            return model(images)

    return step


def make_training_step(model: nn.Module, images: Tensor, labels: Tensor, settings: Settings) -> Step:
    optimizer = build_optimizer(model.train())

    def step() -> None:
        with settings.autocast():
            loss = F.cross_entropy(model(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def halve_batch(batch: int, pairs: int, flops: int, rate: float) -> int:
    """Return the batch, halved until all steps of two models fit into LIMIT; 0 if a single image does not."""
    image = 2 * (pairs + 3) * 4 * flops / (rate / 2)  # forward 1, training 3; half of the rate is typical
    while batch and batch * image > LIMIT:
        batch //= 2
    return batch


def compare(name: str, settings: Settings) -> Iterator[Row]:
    """Yield a row of the forward pass, then one of the training step."""
    ours, peer, image = build_vits(parse_shape(name))
    device, dtype = settings.device, settings.weight_dtype
    rate = measure_matmul_rate(settings.matmul_dtype, device)
    flops = sum(stage.flops for stage in measure_stages(ours, image))
    if not (batch := halve_batch(settings.batch, settings.pairs, flops, rate)):
        print(f"{name} in {settings.dtype} is skipped: too slow at {rate / 1e9:.1f} GFLOP/s", file=sys.stderr)
        return
    weights = sum(parameter.numel() for parameter in ours.parameters()) * dtype.itemsize
    models = [model.to(device, dtype) for model in (ours, peer)]
    if settings.compiled:
        for model in models:
            model.compile()
    images, labels = image.repeat(batch, 1, 1, 1).to(device, dtype), torch.zeros(batch, dtype=torch.long, device=device)
    time_workload = partial(time_pair, settings, rate=rate)
    steps = [make_forward_step(model, images, settings) for model in models]
    yield time_workload(Workload(name, "forward", batch, "timm"), steps, resident=(weights,) * 2, flops=flops * batch)
    # A backward pass costs two forward passes, and AdamW keeps two moments for each weight: 3 times both.
    steps = [make_training_step(model, images, labels, settings) for model in models]
    yield time_workload(
        Workload(name, "training", batch, "timm"), steps, resident=(3 * weights,) * 2, flops=3 * flops * batch
    )
