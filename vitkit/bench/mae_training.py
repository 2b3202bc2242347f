"""`vitkit bench --pretraining`: training steps of MAE, beside those of transformers and lightly, in one process."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.bench.peers import COLUMNS, LEGEND, Row, Settings, Workload, build_optimizer, time_pair
from vitkit.bench.timing import Step
from vitkit.losses import squared_error
from vitkit.models import MAE, SIZES, encoder
from vitkit.nn import Encoder
from vitkit.support.extras import require_package

PIXELS, PATCH, RATIO = 224, 16, 0.75
DECODER = (512, 8, 16)  # dim, depth, heads (https://arxiv.org/abs/2111.06377, section 4)
HEADER = f"""
a training step of MAE: 75 % of 196 patches hidden, decoder 512 x 8, forward, loss, backward, fused AdamW on both sides
{LEGEND}
{COLUMNS}"""


def compare(size: str, settings: Settings) -> Iterator[Row]:
    for package in ("transformers", "lightly"):
        require_package(package, "bench --pretraining", extra="peers")
    device, dtype = settings.device, settings.weight_dtype
    images = torch.randn(settings.batch, 3, PIXELS, PIXELS, device=device, dtype=dtype)
    for peer, build in (("transformers", build_transformers_mae), ("lightly", build_lightly_mae)):
        models = [model.to(device, dtype).train() for model in (build_mae(size), build(size))]
        if settings.compiled:
            for model in models:
                model.compile()
        counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
        resident = [3 * count * dtype.itemsize for count in counts]  # weights and AdamW's two moments
        steps = [make_mae_step(model, images, settings) for model in models]
        yield time_pair(settings, Workload(size, "MAE training", len(images), peer), steps, resident=resident)


def make_mae_step(model: nn.Module, images: Tensor, settings: Settings) -> Step:
    optimizer = build_optimizer(model)

    def step() -> None:
        with settings.autocast():
            loss = model(images)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class LossModel(nn.Module):
    """A model with its loss as output. Args: loss: a function of the model and the images."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, images: Tensor) -> Tensor:
        return self.loss(self.model, images)


def build_mae(size: str) -> nn.Module:
    def loss(model: MAE, images: Tensor) -> Tensor:
        reconstruction = model(images)
        return squared_error(reconstruction.pixels, model.make_target(images, reconstruction.hidden)).mean()

    return LossModel(MAE(encoder(size), Encoder(*DECODER), (PIXELS, PIXELS), (PATCH, PATCH), ratio=RATIO), loss)


def build_transformers_mae(size: str) -> nn.Module:
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
    return LossModel(ViTMAEForPreTraining(config), lambda model, images: model(images).loss)


class LightlyMAE(nn.Module):
    """An MAE assembled as in lightly's documentation, which does not normalise patches."""

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
        visible = self.embed(self.backbone.encode(images, idx_keep=keep))
        hidden = utils.repeat_token(self.decoder.mask_token, size)
        tokens = utils.set_at_index(hidden, keep, visible.type_as(hidden))
        pixels = self.head(utils.get_at_index(self.decoder(tokens), mask))
        return F.mse_loss(pixels, utils.get_at_index(utils.patchify(images, PATCH), mask - 1))


def build_lightly_mae(size: str) -> nn.Module:
    return LightlyMAE(size)
