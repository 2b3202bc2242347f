"""`vitkit bench --pretraining`: a step of MAE, beside transformers' and lightly's of the same sizes, in one process."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.commands.timing import Step, alternate, peak
from vitkit.data.sources import require
from vitkit.losses import squared_error
from vitkit.models import MAE, SIZES, encoder
from vitkit.nn import Encoder

PIXELS, PATCH, RATIO = 224, 16, 0.75
DECODER = (512, 8, 16)  # dim, depth, heads (https://arxiv.org/abs/2111.06377, section 4)
HEADER = """
a training step: 75 % of 196 patches hidden, decoder 512 x 8, forward, loss, backward, AdamW
speed-up is the peer's time / vitkit's: median of the pairs (least-greatest); memory is vitkit's peak / the peer's

model   dtype     batch  peer           vitkit ms  peer ms   speed-up             vitkit MB  peer MB  memory"""


@dataclass(frozen=True)
class Row:
    model: str
    dtype: str
    batch: int
    peer: str
    seconds: tuple[float, float]
    speedup: tuple[float, float, float]
    memory: tuple[int, int]

    def __str__(self) -> str:
        (own, other), (middle, least, greatest), (mine, theirs) = self.seconds, self.speedup, self.memory
        return (
            f"{self.model:7} {self.dtype:9} {self.batch:5}  {self.peer:13} {own * 1e3:10.1f} {other * 1e3:8.1f}   "
            f"{middle:5.2f} ({least:.2f}-{greatest:.2f})      {mine / 1e6:9,.0f} {theirs / 1e6:8,.0f} "
            f"{mine / theirs:7.2f}"
        )


def compare(
    size: str, dtype: torch.dtype, device: torch.device, *, batch: int, pairs: int, compiled: bool
) -> Iterator[Row]:
    for package in ("transformers", "lightly"):
        require(package, "bench --pretraining", extra="peers")
    images = torch.randn(batch, 3, PIXELS, PIXELS, device=device, dtype=dtype)
    for peer, theirs in (("transformers", transformers), ("lightly", lightly)):
        models = [model.to(device, dtype).train() for model in (ours(size), theirs(size))]
        if compiled:
            for model in models:
                model.compile()
        weights = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
        steps = [training(model, images) for model in models]
        times = alternate(steps[0], steps[1], pairs, device)
        # AdamW holds two numbers beside each weight.
        memory = [peak(step, device) + 3 * count * dtype.itemsize for step, count in zip(steps, weights, strict=True)]
        ratios = [b / a for a, b in zip(*times, strict=True)]
        yield Row(
            size,
            str(dtype).removeprefix("torch."),
            batch,
            peer,
            (median(times[0]), median(times[1])),
            (median(ratios), min(ratios), max(ratios)),
            (memory[0], memory[1]),
        )


def training(model: nn.Module, images: Tensor) -> Step:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step() -> None:
        model(images).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Loss(nn.Module):
    """What a model's training step minimises."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, images: Tensor) -> Tensor:
        return self.loss(self.model, images)


def ours(size: str) -> nn.Module:
    def loss(model: MAE, images: Tensor) -> Tensor:
        found = model(images)
        return squared_error(found.pixels, model.target(images, found.hidden)).mean()

    return Loss(MAE(encoder(size), Encoder(*DECODER), (PIXELS, PIXELS), (PATCH, PATCH), ratio=RATIO), loss)


def transformers(size: str) -> nn.Module:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    dim, depth, heads, ratio = SIZES[size]
    config = ViTMAEConfig(
        hidden_size=dim,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=int(dim * ratio),
        decoder_hidden_size=DECODER[0],
        decoder_num_hidden_layers=DECODER[1],
        decoder_num_attention_heads=DECODER[2],
        decoder_intermediate_size=4 * DECODER[0],
        image_size=PIXELS,
        patch_size=PATCH,
        mask_ratio=RATIO,
        norm_pix_loss=True,
    )
    return Loss(ViTMAEForPreTraining(config), lambda model, images: model(images).loss)


class Lightly(nn.Module):
    """As lightly's documentation puts its parts together; it has no normalisation of patches."""

    def __init__(self, size: str) -> None:
        super().__init__()
        from lightly.models import utils
        from lightly.models.modules import MaskedVisionTransformerTIMM
        from lightly.models.modules.masked_vision_transformer_decoder_timm import MaskedVisionTransformerDecoderTIMM
        from timm.models.vision_transformer import VisionTransformer

        dim, depth, heads, ratio = SIZES[size]
        sizes = {"embed_dim": dim, "depth": depth, "num_heads": heads, "mlp_ratio": ratio, "num_classes": 0}
        self.utils: Any = utils
        self.backbone = MaskedVisionTransformerTIMM(VisionTransformer(PIXELS, PATCH, **sizes))
        self.embed = nn.Linear(dim, DECODER[0])
        self.decoder = MaskedVisionTransformerDecoderTIMM((PIXELS // PATCH) ** 2, *DECODER)
        self.head = nn.Linear(DECODER[0], 3 * PATCH**2)

    def forward(self, images: Tensor) -> Tensor:
        utils = self.utils
        size = len(images), self.backbone.sequence_length
        keep, mask = utils.random_token_mask(size, mask_ratio=RATIO, device=images.device)
        seen = self.embed(self.backbone.encode(images, idx_keep=keep))
        tokens = utils.set_at_index(utils.repeat_token(self.decoder.mask_token, size), keep, seen)
        found = self.head(utils.get_at_index(self.decoder(tokens), mask))
        return F.mse_loss(found, utils.get_at_index(utils.patchify(images, PATCH), mask - 1))


def lightly(size: str) -> nn.Module:
    return Lightly(size)
