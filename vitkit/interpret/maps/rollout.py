"""Attention rollout over the layers, and the row of a map that belongs to the pooled token.

B batch, H heads, T tokens, Q queries: T, or 1 if an attention pool comes last.
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
    """Compute A_last ... A_start with A = (1 - residual) mean_h(weights) + residual I (section 3, "Attention rollout").

    Rows sum to 1. An attention pool, of one query, has no residual connection: A is its mean over heads.

    Args:
        weights: of the layers, first to last; all heads, all queries.
        start: index of the first layer to use, negative from the end.
        residual: weight of the residual connection; half in the paper.

    Raises: ValueError for a layer that does not map the tokens to the same tokens, as with windows and stages.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"residual must be from 0 to 1, got residual={residual}")
    layers = check_chain(weights[resolve_start(start, len(weights)) :])
    identity = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)
    result = identity.expand(len(layers[0]), -1, -1)
    for layer in layers:
        mixed = layer.mean(1) if is_pooling(layer) else (1 - residual) * layer.mean(1) + residual * identity
        result = mixed @ result
    return result


def resolve_start(start: int, count: int) -> int:
    """Return a layer's index from the front. Raises: ValueError for one out of range."""
    if not -count <= start < count:
        raise ValueError(f"start must be one of {count} layers, from either end, got start={start}")
    return start % count


def check_chain(weights: Sequence[Float[Tensor, "B _ _ T"]]) -> Sequence[Float[Tensor, "B _ _ T"]]:
    """Return the weights. Raises: ValueError for a layer whose tokens are not those of the layer before."""
    batch, _, _, tokens = weights[0].shape
    for index, layer in enumerate(weights):
        last = is_pooling(layer) and index == len(weights) - 1
        if layer.shape[0] != batch or layer.shape[3] != tokens or not (last or layer.shape[2] == tokens):
            raise ValueError(
                f"weights must map {tokens} tokens to the same tokens in every layer, got {tuple(layer.shape)} in "
                f"layer {index}: windows, stages that merge tokens, and single queries do not multiply; choose layers"
            )
    return weights


def is_pooling(layer: Float[Tensor, "B _ Q T"]) -> bool:
    """Return whether a single query attends to the tokens."""
    return layer.shape[-2] == 1 < layer.shape[-1]


def select_pooled_row(model: nn.Module, maps: Float[Tensor, "*B Q T"]) -> Float[Tensor, "*B T"]:
    """Select the row of what the model pools: CLS, the mean of the patches, or the query of an attention pool.

    Args:
        model: vitkit's, or a Vision Transformer of timm or open_clip.
        maps: a rollout, a relevance, or the weights of one layer, (B, H, Q, T).

    Raises: ValueError for a model whose pooling is unknown, and for an attention pool that is not in maps.
    """
    rows = find_pooled_rows(model)
    if (rows is None) != (maps.shape[-2] == 1 < maps.shape[-1]):
        expected = "the one row of the attention pool" if rows is None else "a row for each token"
        raise ValueError(f"maps must have {expected}, got {maps.shape[-2]} rows of {maps.shape[-1]} tokens")
    return maps.squeeze(-2) if rows is None else maps[..., rows, :].mean(-2)


def find_pooled_rows(model: nn.Module) -> slice | None:
    """Return the rows of the last layer that the model averages; None for an attention pool."""
    if (tower := find_image_tower(model)) is None:
        return find_foreign_pooled_rows(model)
    match tower.pool:
        case First():
            return slice(0, 1)
        case Mean(prefix=prefix):
            return slice(prefix, None)
        case Attend():
            return None
    return find_foreign_pooled_rows(tower)


def find_foreign_pooled_rows(model: nn.Module) -> slice | None:
    """Return the rows of a Vision Transformer of timm or open_clip, by the name of its pool."""
    vit, kind = cast(Any, model), f"{type(model).__module__}.{type(model).__name__}"
    pool, prefix, rows = "", 0, {"token": slice(0, 1), "tok": slice(0, 1), "map": None}
    match kind:
        case "timm.models.vision_transformer.VisionTransformer":
            pool, prefix = vit.global_pool, 0 if vit.pool_include_prefix else vit.num_prefix_tokens
        case "timm.models.eva.Eva" | "timm.models.beit.Beit":
            pool, prefix = vit.global_pool, vit.num_prefix_tokens
        case "open_clip.transformer.VisionTransformer" if vit.attn_pool is None:
            pool, prefix = vit.pool_type, 1
    rows["avg"] = slice(prefix, None)
    if pool in rows:
        return rows[pool]
    raise ValueError(f"model must pool by CLS, by the mean of its patches, or by an attention pool, got {kind}")
