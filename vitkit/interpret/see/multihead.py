"""Attention of `nn.MultiheadAttention`, computed from its own weights: its fused kernel cannot be seen from outside.

B batch, T queries, H heads, Dh head width, D width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import Call, expand_to_4d
from vitkit.interpret.see.layers import CaptureError


def compute_multihead_call(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Call:
    """Return the call that the arguments of the module's `forward` lead to. Raises: CaptureError."""
    if module.bias_k is not None or module.add_zero_attn:
        raise CaptureError("nn.MultiheadAttention with add_bias_kv or add_zero_attn has keys that are no tokens")
    if query.is_nested:
        raise CaptureError("nn.MultiheadAttention got a nested tensor; set enable_nested_tensor=False")
    inputs = [move_batch_first(module, x) for x in (query, key, value)]
    if module.in_proj_weight is None:
        matrices = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        matrices = [*module.in_proj_weight.chunk(3)]
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, matrix, bias).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for x, matrix, bias in zip(inputs, matrices, biases, strict=True)
    )
    hidden, bias = None, None
    padding = None if key_padding_mask is None else key_padding_mask.view(-1, 1, 1, k.shape[2])
    if attn_mask is not None:
        attn_mask = attn_mask.unflatten(0, (-1, module.num_heads)) if attn_mask.ndim == 3 else expand_to_4d(attn_mask)
    for mask in (padding, attn_mask):
        if mask is not None and mask.dtype == torch.bool:  # True may not look
            hidden = mask if hidden is None else hidden | mask
        elif mask is not None:
            bias = mask if bias is None else bias + mask
    return Call(q, k, v, None if hidden is None else ~hidden, bias, None, None)


def move_batch_first(module: nn.MultiheadAttention, x: Tensor) -> Float[Tensor, "B T D"]:
    return x[None] if x.ndim == 2 else x if module.batch_first else x.transpose(0, 1)


def project_heads(module: nn.MultiheadAttention, heads: Float[Tensor, "B H T Dh"], like: Tensor) -> Tensor:
    """Return the module's output for outputs of its heads, in the axes of `like`."""
    x = module.out_proj(heads.transpose(1, 2).flatten(2).to(like.dtype))
    return x[0] if like.ndim == 2 else x if module.batch_first else x.transpose(0, 1)
