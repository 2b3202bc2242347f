"""Similarity of a model's position embeddings.

h w the grid, N = h w patches, P prefix tokens, D width.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.maps.layout import Layout, layout_of
from vitkit.models.parts import find_image_tower
from vitkit.nn import list_cells


def compute_position_similarity(model: nn.Module, size: Sequence[int]) -> Float[Tensor, "h w h w"]:
    """Compute the cosine similarities of position embeddings (https://arxiv.org/abs/2010.11929, figure 7, middle).

    Args:
        model: vitkit's, or one such as timm's with a `pos_embed` of (1, P + N, D) or (1, N, D).
        size: (height, width) of the image in pixels.

    Raises: ValueError for a model without position embeddings, such as one with rotary positions alone.
    """
    layout = layout_of(model, size)
    table = get_position_table(model, layout).detach()
    if not table.any():
        raise ValueError(f"{type(model).__name__} must have a position table, got one of zeros: train it first")
    unit = F.normalize(table, dim=-1)
    return (unit @ unit.mT).unflatten(1, layout.grid).unflatten(0, layout.grid)


def get_position_table(model: nn.Module, layout: Layout) -> Float[Tensor, "N D"]:
    if (tower := find_image_tower(model)) is not None:
        return tower.embed.table(list_cells(layout.grid, tower.embed.prefix.device), layout.grid)[0]
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    if "pos_embed" not in tensors:
        raise ValueError(f"{type(model).__name__} has no position table called pos_embed to compare")
    table = tensors["pos_embed"].flatten(0, -2)
    patches = layout.grid[0] * layout.grid[1]
    if len(table) not in (patches, patches + len(layout.prefix)):
        raise ValueError(
            f"pos_embed must have {patches} rows for patches, optionally after {len(layout.prefix)} for the prefix, "
            f"got {len(table)}; use the image size that the model was made for"
        )
    return table[-patches:]
