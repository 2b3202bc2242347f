import json
from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.interpret.measure.ablation import DRAWS, ablate_heads
from vitkit.interpret.measure.chance import RandomWeights, draw_columns, edit_columns
from vitkit.interpret.measure.effects import measure_class_effect, measure_embedding_effect, measure_multilabel_effect
from vitkit.interpret.measure.flags import flag_ablation
from vitkit.interpret.measure.means import HeadMeans, compute_head_means
from vitkit.interpret.see.calls import Call
from vitkit.interpret.see.edits import Head, attend_uniformly, edit, permute, zero
from vitkit.interpret.see.hooks import watch_layers
from vitkit.interpret.see.layers import CaptureError
from vitkit.models import ViT
from vitkit.nn import Encoder

Randomise = Callable[[nn.Module], nn.Module]
D, H, DH, N, SIZE = 24, 3, 8, 10, (16, 24)
LAYERS = ("encoder.blocks.0.attn.f", "encoder.blocks.1.attn.f")


@pytest.fixture
def model(randomise: Randomise) -> nn.Module:
    return randomise(ViT(Encoder(D, 2, H), SIZE, (8, 8), 5))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(N, 3, *SIZE, dtype=torch.float64)


@pytest.fixture
def labels() -> Tensor:
    return torch.randint(5, (N,))


def without(model: nn.Module, images: Tensor, layer: int, head: int, bias: Tensor | None = None) -> Tensor:
    """Logits with the head's columns of the projection at zero; `bias` is added for them, by tokens."""
    out = model.encoder.blocks[layer].attn.f.out
    whole, part = out.weight.detach().clone(), slice(head * DH, (head + 1) * DH)
    with torch.no_grad():
        out.weight[:, part] = 0
        hook = None
        if bias is not None:
            hook = out.register_forward_hook(lambda _, arguments, output: output + bias @ whole[:, part].mT)
        result = model(images)
        out.weight.copy_(whole)
    if hook:
        hook.remove()
    return result


@pytest.mark.parametrize("size", [10, 6])
def test_ablation_equals_zeroed_columns(size: int, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    batches = list(zip(images.split(size), labels.split(size), strict=True))
    result = ablate_heads(model, model, batches, ["encoder.*"])
    assert result.layers == LAYERS
    assert result.count == N
    rows, before = torch.arange(N), model(images).detach()
    for layer in range(2):
        for head in range(H):
            after = without(model, images, layer, head)
            change = after[rows, labels] - before[rows, labels]
            likelier = after.softmax(1)[rows, labels] - before.softmax(1)[rows, labels]
            right = (after.argmax(1) == labels).double() - (before.argmax(1) == labels).double()
            flips = (after.argmax(1) != before.argmax(1)).double()
            for name, values in (("logit", change), ("probability", likelier), ("accuracy", right), ("flips", flips)):
                summary = result.removed[name][layer]
                assert_close(summary.mean[head], values.mean())
                assert_close(summary.deviation[head], values.std())


def test_mean_ablation_equals_a_bias(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    means = compute_head_means(model, model, images.split(4), ["encoder.*"])
    gathered: dict[str, Tensor] = {}
    with watch_layers(
        {name: model.get_submodule(name) for name in LAYERS},
        lambda name, call: gathered.update({name: call.compute_output()}),
    ):
        model(images)
    for name in LAYERS:
        assert_close(means.means[name], gathered[name].mean(0).detach())
    result = ablate_heads(model, model, [(images, labels)], [LAYERS[1]], means)
    before = model(images).detach()
    for head in range(H):
        after = without(model, images, 1, head, means.means[LAYERS[1]][head])
        change = (after - before)[torch.arange(N), labels]
        assert_close(result.removed["logit"][0].mean[head], change.mean())


def test_unlabelled_images_use_the_predicted_class(model: nn.Module, images: Tensor) -> None:
    predicted = model(images).argmax(1)
    result = [
        ablate_heads(model, model, [(images, labels)], [LAYERS[1]]).removed
        for labels in (predicted, torch.full((N,), -1))
    ]
    assert_close(result[0]["probability"][0].mean, result[1]["probability"][0].mean)
    assert "accuracy" in result[0]
    assert "accuracy" not in result[1]


@pytest.mark.parametrize("size", [1, 4, 10])
def test_accuracy_is_over_labelled_images(size: int, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    known = torch.arange(N) % 3 == 0
    some = labels.where(known, -1)
    result = ablate_heads(model, model, zip(images.split(size), some.split(size), strict=True), LAYERS)
    alone = ablate_heads(model, model, [(images[known], labels[known])], LAYERS)
    for own, other in zip(result.removed["accuracy"], alone.removed["accuracy"], strict=True):
        for mine, theirs in zip(own, other, strict=True):
            assert_close(mine, theirs)


def test_random_columns_are_zeroed_columns_of_the_projection(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    result = ablate_heads(model, model, [(images, labels)], [LAYERS[0]], seed=3).random_columns["logit"][0]
    out, before = model.encoder.blocks[0].attn.f.out, model(images).detach()
    whole = out.weight.detach().clone()
    for draw, columns in enumerate(draw_columns(H, DH, DRAWS, 3)):
        assert columns.sum() == DH
        with torch.no_grad():
            out.weight[:, columns.flatten()] = 0
            assert_close(result.mean[draw], (model(images) - before)[torch.arange(N), labels].mean())
            out.weight.copy_(whole)
    assert len(result.mean) == DRAWS
    assert result.mean.unique().numel() == DRAWS


def test_editing_all_columns_of_a_head_equals_editing_the_head(model: nn.Module, images: Tensor) -> None:
    columns = torch.zeros(H, 1, DH, dtype=torch.bool)
    columns[1] = True
    for how in (zero, attend_uniformly, permute):
        with edit_columns(model, LAYERS[0], how, columns):
            result = model(images)
        with edit(model, Head(LAYERS[0], 1, how)):
            assert_close(result, model(images))


def test_random_map_has_no_effect_on_equal_values(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    layer = model.encoder.blocks[1].attn.f
    with torch.no_grad():  # all tokens have equal values in head 2: it adds a constant
        layer.qkv.weight[2 * D + 2 * DH :] = 0
    result = ablate_heads(model, model, [(images, labels)], [LAYERS[1]])
    assert_close(result.random_map["logit"][0].mean[2], torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-6)
    assert result.random_map["logit"][0].mean[:2].abs().min() > 1e-4
    assert result.removed["logit"][0].mean[2].abs() > 1e-3


def test_random_rows_sum_to_one_over_visible_keys() -> None:
    q, k = torch.randn(2, 2, H, 6, DH)
    v = torch.eye(6, DH).expand(2, H, 6, DH)  # what is gathered are the weights
    mask = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    rows = RandomWeights(0)(Call(q, k, v, mask, None, None, None), Head("", 1))[..., :6]
    assert_close(rows.sum(-1), torch.ones(2, 6))
    assert (rows[:, ~mask[0, 0]] == 0).all()
    assert rows[0, -1].std() > 0.05


def test_random_baseline_is_independent_of_batching(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    cuts = [(images[:1], labels[:1]), (images[1:], labels[1:])]
    result = [ablate_heads(model, model, batches, LAYERS).random_map["logit"] for batches in ([(images, labels)], cuts)]
    for whole, cut in zip(*result, strict=True):
        assert_close(whole.mean, cut.mean, rtol=0, atol=1e-6)


def test_equal_seeds_give_equal_results(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    result = [ablate_heads(model, model, [(images, labels)], [LAYERS[1]], seed=seed) for seed in (1, 1, 2)]
    means = [one.random_map["logit"][0].mean for one in result]
    assert torch.equal(means[0], means[1])
    assert not torch.equal(means[0], means[2])


@pytest.mark.parametrize("fused", [True, False])
def test_timm_heads_are_ablated_fused_or_not(fused: bool, randomise: Randomise, images: Tensor, labels: Tensor) -> None:
    model = randomise(
        timm.create_model(
            "vit_tiny_patch16_224", embed_dim=D, depth=2, num_heads=H, img_size=SIZE, patch_size=8, num_classes=5
        )
    )
    model.blocks[0].attn.fused_attn = fused
    result = ablate_heads(model, model, [(images, labels)], ["blocks.*"])
    before, weight = model(images).detach(), model.blocks[0].attn.proj.weight
    whole = weight.detach().clone()
    with torch.no_grad():
        weight[:, DH : 2 * DH] = 0
        expected = (model(images) - before)[torch.arange(N), labels].mean()
        weight.copy_(whole)
    assert_close(result.removed["logit"][0].mean[1], expected)
    assert [len(one.mean) for one in result.random_columns["logit"]] == [DRAWS if fused else 0, DRAWS]
    json.dumps(result.to_dict(), allow_nan=False)
    if not fused:
        with pytest.raises(CaptureError, match="its own softmax"):
            compute_head_means(model, model, [images], ["blocks.0.*"])


def test_multilabel_probabilities_are_sigmoids() -> None:
    before, after, labels = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, -1, 2, 1])
    result = measure_multilabel_effect(before, after, labels)["probability"]
    assert_close(result[2], after[2, 2].sigmoid() - before[2, 2].sigmoid())
    top = before[1].argmax()
    assert_close(
        measure_class_effect(before, after, labels)["probability"][1],
        after[1].softmax(0)[top] - before[1].softmax(0)[top],
    )


def test_effects_on_16_bit_outputs_are_not_rounded_away(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    logits = torch.tensor([[9.0, 2.0, 1.0]], dtype=torch.bfloat16)  # a probability of 0.998, which rounds to 1

    def run(images: Tensor) -> Tensor:
        model(images)
        return logits.expand(len(images), -1) * next(scales)

    scales = iter([1.0, *[1.125] * 100])
    result = ablate_heads(model, run, [(images, torch.zeros_like(labels))], [LAYERS[0]])
    after, before = ((logits.double() * scale).softmax(1)[0, 0] for scale in (1.125, 1))
    assert_close(result.removed["probability"][0].mean, (after - before).expand(H), rtol=1e-6, atol=0)


def test_embedding_effect_is_the_cosine_distance() -> None:
    before = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    after = torch.tensor([[3.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert_close(measure_embedding_effect(before, after, torch.full((3,), -1))["turn"], torch.tensor([0.0, 1.0, 2.0]))


def test_negligible_layers_are_flagged(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    with torch.no_grad():
        model.encoder.blocks[0].attn.f.out.weight.mul_(1e-4)
    result = flag_ablation(ablate_heads(model, model, [(images, labels)], ["encoder.*"]))
    assert len(result) == 1
    assert str(result[0]).startswith(
        f"removing any one head of {LAYERS[0]} has a negligible effect (mean change of probability"
    )
    one = ablate_heads(model, model, [(images[:1], labels[:1])], [LAYERS[0]])
    assert flag_ablation(one) == []  # of one picture nothing is known
    turned = ablate_heads(model, model, [(images, labels)], [LAYERS[0]], effect=measure_embedding_effect)
    assert "mean change of cosine distance" in str(flag_ablation(turned)[0])


def test_every_pass_ticks(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    ticks = []
    batches = list(zip(images.split(5), labels.split(5), strict=True))
    ablate_heads(model, model, batches, [LAYERS[1]], tick=lambda: ticks.append(1))
    assert len(ticks) == 2 * (1 + 2 * H + DRAWS)


def test_invalid_inputs_are_refused(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    with pytest.raises(ValueError, match="batches must hold images"):
        ablate_heads(model, model, [], ["encoder.*"])
    with pytest.raises(ValueError, match="batches must hold images"):
        compute_head_means(model, model, [], ["encoder.*"])
    with pytest.raises(ValueError, match="finite outputs"):
        ablate_heads(model, lambda images: model(images) * torch.nan, [(images, labels)], LAYERS)
    means = HeadMeans({LAYERS[0]: torch.zeros(H, 3, DH)})
    with pytest.raises(ValueError, match="means must be of 7 tokens"):
        ablate_heads(model, model, [(images, labels)], [LAYERS[0]], means)


def test_model_is_unchanged(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    before, keys = model(images), [*model.state_dict()]
    ablate_heads(model, model, [(images, labels)], [LAYERS[1]])
    assert torch.equal(model(images), before)
    assert [*model.state_dict()] == keys
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_random_rows_are_uniform_on_the_simplex() -> None:
    """Their squares have the mean 2 / (S (S + 1)) of a flat Dirichlet; numbers drawn evenly and scaled have less."""
    q, v = torch.zeros(5000, 1, 4, 8), torch.eye(4, 8).expand(5000, 1, 4, 8)
    rows = RandomWeights(0)(Call(q, q, v, None, None, None, None), Head("", 0))[..., :4]
    assert_close(rows.square().mean(), torch.tensor(2 / (4 * 5)), rtol=0.01, atol=0)
