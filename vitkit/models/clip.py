"""Image and text towers with one embedding space: CLIP (https://arxiv.org/abs/2103.00020), SigLIP (2303.15343).

B batch, C channels, H and W pixels, T tokens, E embedding.
"""

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitkit.models.text import TextTower
from vitkit.models.vit import ViT


class Pair(NamedTuple):
    """Embeddings of length 1; the logit of an image and a text is scale * image . text + bias."""

    image: Float[Tensor, "B E"]
    text: Float[Tensor, "B E"]
    scale: Float[Tensor, ""]
    bias: Float[Tensor, ""]


class CLIP(nn.Module):
    """An image tower and a text tower that embed in one space.

    Args:
        scale: initial value, 1 / 0.07 in CLIP (section 2.5), 10 in SigLIP.
        most: upper limit of the scale in training.
        bias: initial value, -10 in SigLIP (section 3.2); None for no bias, as the softmax loss does not depend on it.
    """

    inputs: ClassVar[tuple[str, ...]] = ("images", "texts")

    def __init__(
        self, image: ViT, text: TextTower, *, scale: float = 1 / 0.07, most: float = 100.0, bias: float | None = None
    ) -> None:
        super().__init__()
        if image.outputs != text.outputs:
            raise ValueError(f"towers must have equal outputs, got image {image.outputs}, text {text.outputs}")
        if not 0 < scale <= most < math.inf:
            raise ValueError(f"scale must be above 0 and at most most={most}, got scale={scale}")
        self.image, self.text, self.most = image, text, most
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.bias = None if bias is None else nn.Parameter(torch.tensor(float(bias)))

    def encode_image(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E"]:
        """Return the embeddings of images, of length 1."""
        return normalize_embeddings(self.image(images))

    def encode_text(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B E"]:
        """Return the embeddings of texts, of length 1."""
        return normalize_embeddings(self.text(ids))

    def forward(self, images: Float[Tensor, "B C H W"], ids: Int[Tensor, "T_B T"]) -> Pair:
        return self.make_pair(self.encode_image(images), self.encode_text(ids))

    def make_pair(self, image: Float[Tensor, "B E"], text: Float[Tensor, "T_B E"]) -> Pair:
        """Return the embeddings with the scale and the bias of their logits."""
        scale = self.log_scale.to(image.dtype).exp()
        return Pair(image, text, scale, torch.zeros_like(scale) if self.bias is None else self.bias.to(image.dtype))

    @torch.no_grad()
    def clamp(self) -> None:
        """Keep the scale at or below `most`, after a step of the optimiser (CLIP, section 2.5)."""
        self.log_scale.clamp_(max=math.log(self.most))


def normalize_embeddings(x: Float[Tensor, "B E"]) -> Float[Tensor, "B E"]:
    """Scale rows to length 1, in float32 at least: 16 bits are too coarse for 100 times a cosine similarity."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)
