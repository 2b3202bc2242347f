"""Differences between the outputs of two models, on images, texts and noise from a fixed seed.

B batch, C channels, h w the model's image size in pixels, T tokens.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitkit.convert.overrides import Conversion, get_image_config, require_preprocess
from vitkit.models import CLIP, MAE
from vitkit.nn import EndOfText


def compute_difference(theirs: Tensor, ours: Tensor) -> float:
    """Return the largest absolute difference. Raises: ValueError for other shapes."""
    if theirs.shape != ours.shape:
        raise ValueError(f"outputs must have the model's shape {tuple(ours.shape)}, got {tuple(theirs.shape)}")
    return (theirs - ours).abs().max().item()


def draw_images(conversion: Conversion) -> Float[Tensor, "2 C h w"]:
    """Return random images of the model's size."""
    size, generator = get_image_config(conversion.config)["init_args"]["image_size"], torch.Generator().manual_seed(0)
    return torch.randn(2, require_preprocess(conversion).channels, *size, generator=generator)


def draw_masking_noise(model: MAE, images: Float[Tensor, "B C h w"]) -> Float[Tensor, "B rows columns"]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(len(images), *model.embed.grid(images.shape[2], images.shape[3]), generator=generator)


def draw_ids(model: CLIP, count: int = 2) -> Int[Tensor, "count T"]:
    """Return random texts. Where a text is pooled at its end, all but the first end before the context does."""
    vocabulary, context = model.text.embed.tokens.num_embeddings, model.text.embed.context
    ids = torch.randint(vocabulary - 1, (count, context), generator=torch.Generator().manual_seed(0))
    match pool := model.text.pool:
        case EndOfText():
            ids = torch.where(ids == pool.end, pool.end - 1 if pool.end else 1, ids)
            ids[0, -1] = ids[1:, context // 2] = pool.end
    return ids


def compare_pairs(
    model: CLIP, images: Float[Tensor, "B C h w"], ids: Int[Tensor, "B T"], theirs: tuple[Tensor, ...]
) -> float:
    """Return the largest difference of embeddings, and of logits, in units of the scale, by scale and bias."""
    ours = model(images, ids)
    image, text, scale, bias = theirs
    logits = ours.scale * ours.image @ ours.text.mT + ours.bias, scale * image @ text.mT + bias
    return max(
        compute_difference(image, ours.image),
        compute_difference(text, ours.text),
        compute_difference(logits[1], logits[0]) / ours.scale.item(),
    )
