from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.set_num_threads(1)  # tiny tensors: a second thread only waits
    torch.manual_seed(0)


@pytest.fixture
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Zeros and ones hide swapped parameters: draw every one, in float64, evaluation mode."""

    def draw(model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in model.double().parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
        return model.eval()

    return draw
