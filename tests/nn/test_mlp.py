from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import MLP, QuickGELU, SwiGLU


def count_stored(step: Callable[[], Tensor]) -> int:
    """Return how many numbers a forward pass stores for the backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.itemsize
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(sizes.values())


def compute_gradients(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    return torch.autograd.grad(module(x).sin().sum(), [x, *module.parameters()])


def test_quick_gelu_equals_formula():
    x = torch.tensor([-1.0, 0.0, 2.0])
    assert_close(QuickGELU()(x), torch.tensor([-1 / (1 + 2.718281828**1.702), 0.0, 2 / (1 + 2.718281828**-3.404)]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", [nn.GELU, partial(nn.GELU, "tanh")])
@pytest.mark.parametrize("bias", [True, False])
def test_training_in_16_bits_stores_only_the_hidden_layer(dtype, act, bias):
    model, x = MLP(16, act=act, bias=bias).to(dtype), torch.randn(2, 5, 16).to(dtype).requires_grad_()
    for trained, evaluated in zip(compute_gradients(model.train(), x), compute_gradients(model.eval(), x), strict=True):
        assert_close(trained, evaluated)
    assert count_stored(lambda: model.train()(x)) == count_stored(lambda: model.eval()(x)) - 2 * 5 * 64
    model, x = model.float(), x.detach().float().requires_grad_()
    assert count_stored(lambda: model.train()(x)) == count_stored(lambda: model.eval()(x))


def test_random_activation_is_drawn_once():
    model, x = MLP(16, act=lambda: nn.Sequential(nn.GELU(), nn.Dropout(0.5))), torch.randn(2, 5, 16, requires_grad=True)
    plain = nn.Sequential(model.up, model.act, model.down)
    assert_close(compute_gradients(model, x), compute_gradients(plain, x))


def test_tanh_gelu_gradient_in_16_bits_equals_autograd():
    """Exact and tanh GELU differ too little for bfloat16, but their gradients differ in float16."""
    x = torch.linspace(-3, -1.5, 64).half().view(4, 16).requires_grad_()
    model = MLP(16, ratio=1.0, act=partial(nn.GELU, "tanh")).half()
    with torch.no_grad():
        model.up.weight.copy_(torch.eye(16))
        model.up.bias.zero_()
        model.down.weight.copy_(100 * torch.eye(16))
    trained, evaluated = (torch.autograd.grad(model.train(mode)(x).float().sum(), x)[0] for mode in (True, False))
    assert_close(trained, evaluated, rtol=0, atol=0.02)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["act", "down"])
def test_hook_runs_once_and_may_be_removed_before_backward(name, training):
    """A head ablation in a `with` statement does this."""
    model, x, calls = MLP(16).bfloat16().train(training), torch.randn(2, 5, 16).bfloat16(), []

    def remove(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append(output)
        return output * 0

    with model.get_submodule(name).register_forward_hook(remove):
        loss = model(x).sum()
    loss.backward()
    assert len(calls) == 1
    assert not model.down.weight.grad.any()


@pytest.mark.parametrize("training", [True, False])
def test_torch_func_transforms_equal_autograd(training):
    model, x = MLP(16).bfloat16().train(training), torch.randn(5, 16).bfloat16().requires_grad_()
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    assert_close(torch.func.grad(lambda x: model(x).sum())(x), expected, rtol=0.02, atol=0.01)
    assert_close(torch.func.vmap(torch.func.grad(lambda row: model(row).sum()))(x), expected, rtol=0.02, atol=0.01)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # raised by torch in forward mode
@pytest.mark.parametrize("training", [True, False])
def test_jacobians_equal_autograd(training):
    model, x = MLP(16).bfloat16().train(training), torch.randn(16).bfloat16().requires_grad_()
    (expected,) = torch.autograd.grad(model(x)[3], x)  # a token without a batch
    jacobian = torch.autograd.functional.jacobian
    for options in ({}, {"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}):
        assert_close(jacobian(model, x, **options)[3], expected, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("training", [True, False])
def test_mismatched_dtypes_are_rejected(training):
    model = MLP(16).bfloat16().train(training)
    model.down.float()
    with pytest.raises(RuntimeError, match="dtype"):
        model(torch.randn(2, 16).bfloat16())


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu_equals_equation(bias):
    """The gate is SiLU by default; T5 1.1 has tanh GELU and no biases."""
    for act in (nn.SiLU(), nn.GELU("tanh")):
        model, x = SwiGLU(12, ratio=2.0, gate=lambda act=act: act, bias=bias), torch.randn(2, 5, 12)
        gate, up = model.gate_up(x).split(24, dim=-1)
        assert_close(model(x), act(gate) * up @ model.down.weight.mT + (model.down.bias if bias else 0))
    assert isinstance(SwiGLU(12).gate, nn.SiLU)


@pytest.mark.parametrize("kind", [MLP, SwiGLU])
def test_no_bias_parameters_without_bias(kind):
    assert {name.split(".")[-1] for name, _ in kind(8, bias=False).named_parameters()} == {"weight"}
    assert kind(8, bias=False)(torch.zeros(1, 8)).eq(0).all()
