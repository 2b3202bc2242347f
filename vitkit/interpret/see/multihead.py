"""What an `nn.MultiheadAttention` attends to, by its own weights: what it does inside cannot be seen.

B batch, T queries, H heads, Dh head width, D width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.interpret.see.calls import Call, four
from vitkit.interpret.see.layers import NotCaptured


def of_multihead(
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
    """From the arguments of its `forward`. Raises: NotCaptured."""
    if module.bias_k is not None or module.add_zero_attn:
        raise NotCaptured("nn.MultiheadAttention with add_bias_kv or add_zero_attn has keys that are no tokens")
    if query.is_nested:
        raise NotCaptured("nn.MultiheadAttention got a nested tensor; make its encoder with enable_nested_tensor=False")
    inputs = [batched(module, x) for x in (query, key, value)]
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
        attn_mask = attn_mask.unflatten(0, (-1, module.num_heads)) if attn_mask.ndim == 3 else four(attn_mask)
    for given in (padding, attn_mask):
        if given is not None and given.dtype == torch.bool:  # True may not look
            hidden = given if hidden is None else hidden | given
        elif given is not None:
            bias = given if bias is None else bias + given
    return Call(q, k, v, None if hidden is None else ~hidden, bias, None, None)


def batched(module: nn.MultiheadAttention, x: Tensor) -> Float[Tensor, "B T D"]:
    return x[None] if x.ndim == 2 else x if module.batch_first else x.transpose(0, 1)


def merged(module: nn.MultiheadAttention, gathered: Float[Tensor, "B H T Dh"], like: Tensor) -> Tensor:
    """What the module makes of what its heads gathered, in the axes of its own output."""
    x = module.out_proj(gathered.transpose(1, 2).flatten(2).to(like.dtype))
    return x[0] if like.ndim == 2 else x if module.batch_first else x.transpose(0, 1)
