from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import MLP, ExplicitCore, MeasuredCore, QuickGELU, attention


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


def test_in_training_the_activation_is_computed_anew_and_the_gradients_are_the_same():
    model, x = MLP(16), torch.randn(2, 5, 16, requires_grad=True)
    for trained, evaluated in zip(gradients(model.train(), x), gradients(model.eval(), x), strict=True):
        assert torch.equal(trained, evaluated)
    assert kept(lambda: model.train()(x)) <= kept(lambda: model.eval()(x)) - 2 * 5 * 64


def test_a_random_activation_is_drawn_once():
    model, x = MLP(16, act=lambda: nn.Sequential(nn.GELU(), nn.Dropout(0.5))), torch.randn(2, 5, 16, requires_grad=True)
    plain = nn.Sequential(model.up, model.act, model.down)
    assert_close(gradients(model, x), gradients(plain, x))


def test_in_evaluation_a_hook_may_go_before_the_backward_pass():
    """As an ablation inside a `with` does."""
    model, x = MLP(16).eval(), torch.randn(2, 5, 16)
    with model.act.register_forward_hook(lambda module, arguments, output: output * 0):
        loss = model(x).sum()
    loss.backward()
    assert not model.down.weight.grad.any()


def test_in_evaluation_functions_of_torch_go_through():
    model, x = MLP(16).eval(), torch.randn(5, 16, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    assert_close(torch.func.grad(lambda x: model(x).sum())(x), expected)


def test_without_a_gradient_nothing_is_computed_twice():
    model, calls = MLP(16), []
    model.act.register_forward_hook(lambda *call: calls.append(call))
    with torch.no_grad():
        model(torch.randn(2, 16))
    assert len(calls) == 1


def test_the_measured_core_keeps_no_weights_in_training_and_drops_the_same(monkeypatch):
    monkeypatch.setattr(attention, "explicit_is_faster", lambda *facts: True)
    core = MeasuredCore()
    q, k, v = (torch.randn(2, 4, attention.FEW + 1, 8, requires_grad=True) for _ in range(3))
    few = [x[:, :, :-1] for x in (q, k, v)]

    def grads(core: nn.Module, dropout: float) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        return torch.autograd.grad(core(q, k, v, None, None, False, 0.3, dropout).sin().sum(), [q, k, v])

    for dropout in (0.0, 0.4):
        for found in (grads(core.train(), dropout), grads(core.eval(), dropout)):
            assert_close(found, grads(ExplicitCore(), dropout))
    weights = 2 * 4 * (attention.FEW + 1) ** 2
    assert kept(lambda: core.train()(q, k, v)) <= kept(lambda: core.eval()(q, k, v)) - weights
    assert kept(lambda: core.train()(*few)) == kept(lambda: core.eval()(*few))  # they save little, for some time
