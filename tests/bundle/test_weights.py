"""Tied weights: if logits are products with the embedding, there is one parameter with one name."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle.weights import load, save_weights
from vitkit.nn import Encoder, TokenEmbed
from vitkit.optim import group_parameters

IDS = torch.tensor([[3, 5, 1, 0], [4, 4, 2, 6]])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.encoder = TokenEmbed(16, 9, 5, scale=4.0), Encoder(16, 1, 2, causal=True)

    def features(self, ids: Tensor) -> Tensor:
        return self.encoder(*self.embed(ids))

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.features(ids), self.embed.tokens.weight)


def test_tied_weight_is_one_tensor_and_one_parameter() -> None:
    model = Tied()
    shapes = [(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items() if 9 in tensor.shape]
    assert shapes == [("embed.tokens.weight", (9, 16))]
    trained = [name for group in group_parameters(model, 0.1, 0.05) for name in group.parameters]
    assert sorted(trained) == sorted(name for name, _ in model.named_parameters()) == sorted(model.state_dict())


def test_tied_weight_gradient_is_sum_over_both_uses() -> None:
    model = Tied().double()
    weight = model.embed.tokens.weight
    F.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten()).backward()
    leaves = [weight.detach().clone().requires_grad_() for _ in range(2)]
    features = torch.func.functional_call(model.embed, {"tokens.weight": leaves[0]}, (IDS,))
    logits = F.linear(model.encoder(*features), leaves[1])
    inner, outer = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), IDS.flatten()), leaves)
    assert inner.any() and outer.any() and weight.grad is not None
    assert_close(weight.grad, inner + outer)
    before = weight.detach().clone()
    torch.optim.AdamW([group.options for group in group_parameters(model, 0.1, 0.05)]).step()
    assert not torch.equal(weight, before)
    assert_close(model(IDS), model.features(IDS) @ weight.T)


def test_tied_weight_is_saved_and_loaded_once(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    save_weights(tmp_path, model.state_dict())
    state = load_file(tmp_path / "model.safetensors")
    assert state.keys() == model.state_dict().keys()
    load(other, state)
    assert torch.equal(other(IDS), model(IDS))


def test_two_names_for_one_tensor_are_rejected(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(9, 16), "head": nn.Linear(16, 9, bias=False)})
    model["head"].weight = model["embed"].weight
    with pytest.raises(ValueError, match=r"under one name each, got one for embed\.weight, head\.weight"):
        save_weights(tmp_path, model.state_dict())
    assert not [*tmp_path.iterdir()]
