"""How attention adds up over the layers, and which row of it makes the answer of a model.

B batch, H heads, T tokens, Q queries: T, or 1 where a pool that attends comes last.
https://arxiv.org/abs/2005.00928
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.models.parts import find_image_tower
from vitkit.nn import Attend, First, Mean


def rollout(
    weights: Sequence[Float[Tensor, "B _ _ T"]], *, start: int = 0, residual: float = 0.5
) -> Float[Tensor, "B Q T"]:
    """A_last ... A_start with A = (1 - residual) mean_h(weights) + residual I: section 3, "Attention rollout".

    Rows sum to 1. An attending pool, of one query, has no residual connection: it is its mean over heads.

    Args:
        weights: of the layers, first to last; all heads, all queries.
        start: the place of the first layer that counts, from either end.
        residual: the share of a token's own stream; half in the paper.

    Raises: ValueError where a layer does not go from the tokens to the same tokens, as in windows and between stages.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must be from 0 to 1, got residual={residual}")
    counted = chained(weights[checked_start(start, len(weights)) :])
    own = torch.eye(counted[0].shape[-1], dtype=counted[0].dtype, device=counted[0].device)
    result = own.expand(len(counted[0]), -1, -1)
    for layer in counted:
        mixed = layer.mean(1) if pools(layer) else (1 - residual) * layer.mean(1) + residual * own
        result = mixed @ result
    return result


def checked_start(start: int, count: int) -> int:
    """A place from the front. Raises: ValueError for one that is not there."""
    if not -count <= start < count:
        raise ValueError(f"start must be one of {count} layers, from either end, got start={start}")
    return start % count


def chained(weights: Sequence[Float[Tensor, "B _ _ T"]]) -> Sequence[Float[Tensor, "B _ _ T"]]:
    """Raises: ValueError where a layer's tokens are not those of the layer before."""
    batch, _, _, tokens = weights[0].shape
    for place, layer in enumerate(weights):
        end = pools(layer) and place == len(weights) - 1
        if layer.shape[0] != batch or layer.shape[3] != tokens or not (end or layer.shape[2] == tokens):
            raise ValueError(
                f"weights must go from {tokens} tokens to the same tokens in every layer, got {tuple(layer.shape)} in "
                f"layer {place}: windows, stages that merge tokens, and single queries do not multiply; choose layers"
            )
    return weights


def pools(layer: Float[Tensor, "B _ Q T"]) -> bool:
    """Whether one query reads the tokens."""
    return layer.shape[-2] == 1 < layer.shape[-1]


def pooled_row(model: nn.Module, maps: Float[Tensor, "*B Q T"]) -> Float[Tensor, "*B T"]:
    """The row that makes the answer: that of CLS, the mean of the patches' rows, or of the pool that attends its own.

    Args:
        model: vitkit's, or a Vision Transformer of timm or open_clip.
        maps: a rollout, a relevance, or the weights of one layer, (B, H, Q, T).

    Raises: ValueError for a model of which it is not known how it pools, and for an attending pool that is not in maps.
    """
    rows = read_rows(model)
    if (rows is None) != (maps.shape[-2] == 1 < maps.shape[-1]):
        wanted = "the one row of the pool, which attends" if rows is None else "a row for each token"
        raise ValueError(f"maps must have {wanted}, got {maps.shape[-2]} rows of {maps.shape[-1]} tokens")
    return maps.squeeze(-2) if rows is None else maps[..., rows, :].mean(-2)


def read_rows(model: nn.Module) -> slice | None:
    """Of the last layer, those over which the model takes the mean; None where its pool attends by itself."""
    if (tower := find_image_tower(model)) is None:
        return foreign_rows(model)
    match tower.pool:
        case First():
            return slice(0, 1)
        case Mean(prefix=prefix):
            return slice(prefix, None)
        case Attend():
            return None
    return foreign_rows(tower)


def foreign_rows(model: nn.Module) -> slice | None:
    """As `read_rows`, by what timm's and open_clip's Vision Transformers call their pools."""
    known, kind = cast(Any, model), f"{type(model).__module__}.{type(model).__name__}"
    pool, prefix, rows = "", 0, {"token": slice(0, 1), "tok": slice(0, 1), "map": None}
    match kind:
        case "timm.models.vision_transformer.VisionTransformer":
            pool, prefix = known.global_pool, 0 if known.pool_include_prefix else known.num_prefix_tokens
        case "timm.models.eva.Eva" | "timm.models.beit.Beit":
            pool, prefix = known.global_pool, known.num_prefix_tokens
        case "open_clip.transformer.VisionTransformer" if known.attn_pool is None:
            pool, prefix = known.pool_type, 1
    rows["avg"] = slice(prefix, None)
    if pool in rows:
        return rows[pool]
    raise ValueError(f"model must pool by CLS, by the mean of its patches, or by one query that attends, got {kind}")
