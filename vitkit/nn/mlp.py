"""Feed-forward layers, applied to each token alone. D width."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit.nn.functions import gelu_linear, is_plain
from vitkit.nn.residual import Branch


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), the approximation of GELU that CLIP's weights were trained with."""

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        return x * torch.sigmoid(1.702 * x)


class FeedForward(Branch):
    """Abstract: a branch that also gives its first matrix, which init.py may scale."""

    @property
    @abstractmethod
    def first(self) -> nn.Linear:
        """The matrix that is multiplied with x."""


class MLP(FeedForward):
    """down(act(up(x))), with a hidden width of ratio * D.

    Training in 16 bits stores only up(x) for the backward pass, if `act` is GELU and neither it nor `down` has hooks.
    This cost no measurable time in ViT-Ti/16 and S/16 (torch 2.14, a CPU with AVX512-BF16), but 2 % in float32, where
    it is not done.
    """

    def __init__(
        self, dim: int, *, ratio: float = 4.0, act: Callable[[], nn.Module] = nn.GELU, bias: bool = True
    ) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.up, self.act, self.down = nn.Linear(dim, hidden, bias), act(), nn.Linear(hidden, dim, bias)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        hidden = self.up(x)
        if self.training and hidden.itemsize == 2 and is_plain(self.act, nn.GELU) and is_plain(self.down, nn.Linear):
            return gelu_linear(hidden, self.down, self.act.approximate)
        return self.down(self.act(hidden))

    @property
    def first(self) -> nn.Linear:
        return self.up

    @property
    def last(self) -> nn.Linear:
        return self.down


class SwiGLU(FeedForward):
    """down(gate(W x) * V x), https://arxiv.org/abs/2002.05202. 2/3 of an MLP's ratio gives equally many parameters.

    `gate` is not called `act`: a class that replaces MLP in a config takes over its arguments of the same name, so
    `act` would become MLP's GELU.
    """

    def __init__(
        self, dim: int, *, ratio: float = 8 / 3, gate: Callable[[], nn.Module] = nn.SiLU, bias: bool = True
    ) -> None:
        super().__init__()
        hidden = int(dim * ratio)
        self.gate_up, self.gate, self.down = nn.Linear(dim, 2 * hidden, bias), gate(), nn.Linear(hidden, dim, bias)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.gate(gate) * up)

    @property
    def first(self) -> nn.Linear:
        return self.gate_up

    @property
    def last(self) -> nn.Linear:
        return self.down
