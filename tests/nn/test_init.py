from functools import partial

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.models import TextTower, ViT
from vitkit.nn import MLP, Attend, Encoder, Message, RelativeBias, init
from vitkit.nn.residual import Branch


def build_vit(recipe) -> ViT:
    encoder = Encoder(128, 3, 4, position=partial(RelativeBias, axes=2))
    return ViT(encoder, (64, 96), (16, 16), pool=partial(Attend, heads=4), init=recipe)


def compute_std(parameter: torch.Tensor) -> float:
    return parameter.detach().std().item()


@pytest.mark.parametrize("recipe", [init.vit, init.mae])
def test_every_parameter_is_initialised_by_the_recipe(recipe):
    """Biases are 0, norms are the identity, tokens and tables have the recipe's standard deviation."""
    for name, parameter in build_vit(recipe).named_parameters():
        if "norm" in name:
            assert parameter.unique().tolist() == [float(name.endswith("weight"))], name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        elif name.split(".")[-1] in ("prefix", "query") or ".table." in name or "position." in name:
            assert compute_std(parameter) == pytest.approx(0.02, rel=0.25), name


def test_vit_init_scales_last_matrix_of_each_branch():
    vit = build_vit(init.vit)
    block = vit.encoder.blocks[1]
    # truncation at -2 and 2, not at two deviations, keeps the standard deviation
    assert compute_std(block.attn.f.qkv.weight) == pytest.approx(0.02, rel=0.05)
    assert compute_std(block.mlp.f.up.weight) == pytest.approx(0.02, rel=0.05)
    assert compute_std(block.attn.f.out.weight) == pytest.approx(0.02 / 6**0.5, rel=0.05)
    assert compute_std(block.mlp.f.down.weight) == pytest.approx(0.02 / 6**0.5, rel=0.05)
    assert compute_std(vit.head.weight) == pytest.approx(0.02, rel=0.05)
    assert compute_std(vit.embed.patches.weight) == pytest.approx((3 * 16 * 16) ** -0.5, rel=0.05)


def test_vit_init_counts_cross_attention_branches():
    decoder = nn.Sequential(Encoder(64, 2, 4, memory_dim=32))
    init.vit(decoder)
    assert compute_std(decoder[0].blocks[0].cross.f.out.weight) == pytest.approx(0.02 / 6**0.5, rel=0.1)


def test_mae_init_is_xavier_for_joint_qkv_and_flattened_patches():
    vit = build_vit(init.mae)
    for weight in (vit.encoder.blocks[0].attn.f.qkv.weight, vit.embed.patches.weight.flatten(1)):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert_close(weight.abs().max().item(), bound, rtol=0.01, atol=0)
        assert compute_std(weight) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_initial_loss_is_that_of_uniform_predictions():
    logits = build_vit(init.vit).eval()(torch.randn(8, 3, 64, 96))
    loss = nn.functional.cross_entropy(logits, torch.randint(1000, (8,)))
    assert loss.item() == pytest.approx(torch.tensor(1000.0).log().item(), rel=0.01)


def test_clip_init_depends_on_width_and_depth():
    """Standard deviations equal CLIP's code, including token and position embeddings."""
    dim, depth = 128, 3
    text = TextTower(Encoder(dim, depth, 4, causal=True), vocabulary=500, context=77, outputs=96)
    block = text.encoder.blocks[1]
    expected = {
        text.embed.tokens.weight: 0.02,
        text.embed.table.weight: 0.01,
        block.attn.f.qkv.weight: dim**-0.5,
        block.attn.f.out.weight: dim**-0.5 * (2 * depth) ** -0.5,
        block.mlp.f.up.weight: (2 * dim) ** -0.5,
        block.mlp.f.down.weight: dim**-0.5 * (2 * depth) ** -0.5,
        text.head.weight: dim**-0.5,
    }
    for parameter, deviation in expected.items():
        assert compute_std(parameter) == pytest.approx(deviation, rel=0.05)
    assert not any(parameter.any() for name, parameter in text.named_parameters() if name.endswith("bias"))


class Reversed(Branch):
    """A branch that registers its last matrix first, and an unused one at the end."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.leave, self.enter, self.probe = nn.Linear(2 * dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, 1)

    @property
    def last(self) -> nn.Linear:
        return self.leave

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.enter(x).relu())


@pytest.mark.parametrize("mlp", [Reversed, lambda dim: nn.Sequential(nn.LayerNorm(dim), Reversed(dim))])
def test_last_matrix_is_taken_from_the_branch(mlp):
    """The order of registration and modules around the branch do not matter."""
    model = nn.Sequential(Encoder(128, 2, 4, mlp=mlp))
    last, first, probe = (
        module.weight for module in model[0].blocks[0].mlp.f.modules() if isinstance(module, nn.Linear)
    )
    init.vit(model)
    assert compute_std(last) == pytest.approx(0.02 / 4**0.5, rel=0.05)
    assert compute_std(first) == pytest.approx(0.02, rel=0.05)
    assert compute_std(probe) == pytest.approx(0.02, rel=0.3)
    init.clip(model)
    assert compute_std(last) == pytest.approx((2 * 128 * 2) ** -0.5, rel=0.05)
    assert compute_std(first) == pytest.approx(128**-0.5, rel=0.05)  # (2 D)^-1/2 is for the `first` of a FeedForward
    assert compute_std(probe) == pytest.approx(128**-0.5, rel=0.3)


class Fuse(Reversed):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.enter = nn.Linear(2 * dim, 2 * dim)


def test_last_matrix_of_a_message_is_that_of_its_fusion():
    model = nn.Sequential(Encoder(128, 2, 4, residual=partial(Message, fuse=Fuse)))
    init.vit(model)
    residual = model[0].blocks[0].attn
    assert compute_std(residual.fuse.last.weight) == pytest.approx(0.02 / 4**0.5, rel=0.05)
    assert compute_std(residual.f.out.weight) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("mlp", [lambda dim: nn.Linear(dim, dim), lambda dim: nn.Sequential(MLP(dim), MLP(dim))])
@pytest.mark.parametrize("recipe", [init.vit, init.clip])
def test_branch_without_known_last_matrix_is_rejected(mlp, recipe):
    """There is no Branch, or two; the MAE recipe, which scales no branch, accepts both."""
    model = nn.Sequential(Encoder(32, 1, 4, mlp=mlp))
    name = type(mlp(32)).__name__
    with pytest.raises(ValueError, match=f"must add one Branch.* got {name}; derive it from"):
        recipe(model)
    init.mae(model)
