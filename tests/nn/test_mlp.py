from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import MLP, QuickGELU


def kept(step: Callable[[], Tensor]) -> int:
    """How many numbers a forward pass keeps for the backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.itemsize
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(sizes.values())


def gradients(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.autograd.grad(module(x).sin().sum(), [x, *module.parameters()])


def test_quick_gelu_is_the_sigmoid_of_1_702():
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert_close(QuickGELU()(x), torch.tensor([-1 / (1 + 2.718281828**1.702), 0.0, 2 / (1 + 2.718281828**-3.404)]))


def test_training_in_16_bits_keeps_the_hidden_layer_alone():
    model, x = MLP(16).bfloat16(), torch.randn(2, 5, 16).bfloat16().requires_grad_()
    for trained, evaluated in zip(gradients(model.train(), x), gradients(model.eval(), x), strict=True):
        assert_close(trained, evaluated)
    assert kept(lambda: model.train()(x)) == kept(lambda: model.eval()(x)) - 2 * 5 * 64
    model, x = model.float(), x.detach().float().requires_grad_()
    assert kept(lambda: model.train()(x)) == kept(lambda: model.eval()(x))


def test_a_random_activation_is_drawn_once():
    model, x = MLP(16, act=lambda: nn.Sequential(nn.GELU(), nn.Dropout(0.5))), torch.randn(2, 5, 16, requires_grad=True)
    plain = nn.Sequential(model.up, model.act, model.down)
    assert_close(gradients(model, x), gradients(plain, x))


@pytest.mark.parametrize("training", [True, False])
def test_a_hook_runs_once_and_may_go_before_the_backward_pass(training):
    """As an ablation inside a `with` does."""
    model, x, calls = MLP(16).bfloat16().train(training), torch.randn(2, 5, 16).bfloat16(), []

    def remove(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append(output)
        return output * 0

    with model.act.register_forward_hook(remove):
        loss = model(x).sum()
    loss.backward()
    assert len(calls) == 1
    assert not model.down.weight.grad.any()


@pytest.mark.parametrize("training", [True, False])
def test_transforms_of_torch_func_go_through(training):
    model, x = MLP(16).bfloat16().train(training), torch.randn(5, 16).bfloat16().requires_grad_()
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    assert_close(torch.func.grad(lambda x: model(x).sum())(x), expected, rtol=0.02, atol=0.01)
    assert_close(torch.func.vmap(torch.func.grad(lambda row: model(row).sum()))(x), expected, rtol=0.02, atol=0.01)
