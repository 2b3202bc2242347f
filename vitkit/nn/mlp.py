"""Feed-forwards, applied to each token alone. D width."""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), the approximation of GELU that CLIP's weights were trained with."""

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return x * torch.sigmoid(1.702 * x)


class MLP(nn.Module):
    """down(act(up(x)))

    In training the backward pass computes the activation anew, for which a quarter of a block's memory would go: what
    is hooked to `act` then runs twice, and must stay until the gradients are there.
    """

    def __init__(self, dim: int, *, ratio: float = 4.0, act: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.up, self.act, self.down = nn.Linear(dim, hidden), act(), nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        hidden = self.up(x)
        if self.training and hidden.requires_grad:
            return cast(Tensor, checkpoint(self.finish, hidden, use_reentrant=False))
        return self.finish(hidden)

    def finish(self, hidden: Float[Tensor, "*B hidden"]) -> Float[Tensor, "*B D"]:
        return self.down(self.act(hidden))


class SwiGLU(nn.Module):
    """down(silu(gate) * up), https://arxiv.org/abs/2002.05202; 2/3 of 4 D keep the MLP's number of parameters."""

    def __init__(self, dim: int, *, ratio: float = 8 / 3) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.gate_up, self.down = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
