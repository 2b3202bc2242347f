from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.testing import assert_close

from vitkit.nn import MLP
from vitkit.nn.functions import GELULinear, gelu_linear, is_plain

random = partial(torch.randn, dtype=torch.float64, requires_grad=True)
exact = partial(assert_close, rtol=0, atol=1e-12)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("biased", [True, False])
def test_gelu_linear_equals_modules_and_passes_gradchecks(approximate, biased):
    hidden, weight, bias = random(2, 3, 8), random(4, 8), random(4) if biased else None
    exact(
        GELULinear.apply(hidden, weight, bias, approximate),
        F.linear(F.gelu(hidden, approximate=approximate), weight, bias),
    )
    inputs = (hidden, weight) + ((bias,) if biased else ())
    call = lambda h, w, b=None: GELULinear.apply(h, w, b, approximate)  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_frozen_parameters_get_no_gradient():
    hidden, linear = random(2, 8), nn.Linear(8, 4).double().requires_grad_(False)
    (grad,) = torch.autograd.grad(gelu_linear(hidden, linear).sum(), hidden)
    (expected,) = torch.autograd.grad(linear(F.gelu(hidden)).sum(), hidden)
    exact(grad, expected)
    linear.weight.requires_grad_(True)
    gelu_linear(hidden.detach(), linear).sum().backward()
    assert linear.weight.grad is not None and linear.bias.grad is None and hidden.grad is None


def add_forward_hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda *_: None)


def add_forward_pre_hook(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda *_: None)


def add_backward_hook(module: nn.Module) -> None:
    module.register_full_backward_hook(lambda *_: None)


def add_backward_pre_hook(module: nn.Module) -> None:
    module.register_full_backward_pre_hook(lambda *_: None)


def replace_forward(module: nn.Module) -> None:
    module.forward = module.forward


@pytest.mark.parametrize(
    "change",
    [
        add_forward_hook,
        add_forward_pre_hook,
        add_backward_hook,
        add_backward_pre_hook,
        replace_forward,
        nn.utils.parametrizations.weight_norm,
    ],
)
def test_module_with_hooks_or_changes_is_not_plain(change):
    module = nn.Linear(2, 2)
    assert is_plain(module, nn.Linear) and not is_plain(module, nn.Identity)
    change(module)
    assert not is_plain(module, nn.Linear)


def test_no_module_is_plain_under_global_hooks_or_transforms():
    module = nn.Linear(2, 2)
    with register_module_forward_hook(lambda *_: None):
        assert not is_plain(module, nn.Linear)

    def total(x: Tensor) -> Tensor:
        assert not is_plain(module, nn.Linear)
        return x.sum()

    torch.func.grad(total)(torch.ones(2))
    assert is_plain(module, nn.Linear)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_under_autocast_have_parameter_dtype(dtype):
    model, x = MLP(16), torch.randn(2, 16, requires_grad=True)
    results = []
    for training in (True, False):
        with torch.autocast("cpu", dtype):
            y = model.train(training)(x)
        assert y.dtype == dtype
        results.append(torch.autograd.grad(y.float().sin().sum(), [x, *model.parameters()]))
    assert all(grad.dtype == torch.float32 for grad in results[0])
    assert_close(results[0], results[1], rtol=0.05, atol=0.01)  # the order of two roundings to 8 or 11 bits
