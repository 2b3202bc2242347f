import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import timm
import torch
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.interpret.maps.layout import Layout, layout_of
from vitkit.interpret.maps.position_similarity import compute_position_similarity
from vitkit.interpret.measure.ablation import ablate_heads
from vitkit.interpret.measure.comparison import compare_statistics
from vitkit.interpret.measure.means import compute_head_means
from vitkit.interpret.measure.moments import Moments, compute_t_quantile
from vitkit.interpret.measure.statistics import (
    compute_patch_distances,
    group_tokens,
    measure_weights,
    select_images,
    statistics,
)
from vitkit.interpret.see.calls import Call
from vitkit.interpret.see.capture import capture
from vitkit.interpret.see.layers import CaptureError
from vitkit.models import CLIP, MAE, TextTower, ViT
from vitkit.nn import Encoder, Learned, Sinusoidal

Randomise = Callable[[nn.Module], nn.Module]
D, H, SIZE = 24, 3, (16, 24)
LAYOUT = Layout(("cls", "reg0", "reg1"), (2, 3), (8, 8))


def vit(prefix: int = 3, heads: int = H) -> ViT:
    return ViT(Encoder(D, 2, heads), SIZE, (8, 8), 5, prefix=prefix)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(7, 3, *SIZE, dtype=torch.float64)


def compute_in_loops(model: nn.Module, images: Tensor, prefix: int) -> dict[str, np.ndarray]:
    """(L, pictures, H) of each measure, in plain loops."""
    with capture(model) as attention, torch.no_grad():
        model(images)
    result: dict[str, list] = {}
    for weights in attention.values():
        A = weights.weights.numpy()
        rows: dict[str, list] = {}
        for image in A:
            values: dict[str, list] = {}
            for head in image:
                T, distance = len(head), []
                for q in range(prefix, T):
                    row = head[q, prefix:] / head[q, prefix:].sum()
                    (qy, qx) = divmod(q - prefix, 3)
                    distance.append(sum(w * math.hypot(k // 3 - qy, k % 3 - qx) for k, w in enumerate(row)))
                values.setdefault("distance", []).append(np.mean(distance))
                values.setdefault("entropy", []).append(-(head * np.log(head)).sum(1).mean())
                values.setdefault("diagonal", []).append(np.mean([head[t, t] for t in range(T)]))
                values.setdefault("sink", []).append(head.mean(0).max())
                values.setdefault("cls", []).append(head[:, 0].mean())
                values.setdefault("registers", []).append(head[:, 1:prefix].sum(1).mean())
                values.setdefault("patches", []).append(head[:, prefix:].sum(1).mean())
            for name, row in values.items():
                rows.setdefault(name, []).append(row)
        for name, row in rows.items():
            result.setdefault(name, []).append(row)
    return {name: np.array(rows) for name, rows in result.items()}


def test_every_measure_equals_plain_loops(randomise: Randomise, images: Tensor) -> None:
    model = randomise(vit())
    result = statistics(model, model, images.split(3), ["encoder.*"], layout_of(model, SIZE))
    expected = compute_in_loops(model, images, 3)
    assert list(result.measures) == ["distance", "entropy", "diagonal", "sink", "cls", "registers", "patches"]
    assert result.layers == ("encoder.blocks.0.attn.f", "encoder.blocks.1.attn.f")
    assert result.count == 7
    for name, rows in expected.items():
        for layer, summary in enumerate(result.measures[name]):
            n, values = len(images), rows[layer]
            assert_close(summary.mean.numpy(), values.mean(0))
            assert_close(summary.deviation.numpy(), values.std(0, ddof=1))
            half = stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / n**0.5
            assert_close(summary.high.numpy(), values.mean(0) + half, rtol=1e-4, atol=0)
            assert_close(summary.low.numpy(), values.mean(0) - half, rtol=1e-4, atol=0)


def test_similarity_is_the_cosine_of_maps(randomise: Randomise, images: Tensor) -> None:
    model = randomise(vit())
    with capture(model, 1) as attention, torch.no_grad():
        model(images)
    flat = attention.get_layer(0).weights.flatten(2)
    expected = torch.cosine_similarity(flat[:, :, None], flat[:, None], dim=-1).mean(0)
    result = statistics(model, model, images.split(4), ["encoder.blocks.1.*"], layout_of(model, SIZE))
    assert_close(result.similarity[0], expected)


@pytest.mark.parametrize("sizes", [[7], [1] * 7, [2, 5], [6, 0, 1]])
@pytest.mark.parametrize("largest", [1, 10**9])
def test_statistics_are_independent_of_batching(
    sizes: list[int], largest: int, randomise: Randomise, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.interpret.measure.statistics.LARGEST", largest)
    model = randomise(vit())
    batches = [batch for batch in images.split(sizes) if len(batch)]
    result = statistics(model, model, batches, ["encoder.*"], layout_of(model, SIZE))
    expected = statistics(model, model, [images], ["encoder.*"], layout_of(model, SIZE))
    for name, summaries in expected.measures.items():
        for pair in zip(result.measures[name], summaries, strict=True):
            assert_close(*(torch.stack(one) for one in pair))
    assert_close(result.similarity, expected.similarity)


def test_batches_are_not_kept_in_memory(randomise: Randomise, images: Tensor) -> None:
    """As many pictures as there are batches for: an endless list would do."""
    model, alive = randomise(vit()), []

    def batches() -> Sequence[Tensor]:
        import weakref

        for _ in range(20):
            batch = torch.randn(1, 3, *SIZE, dtype=torch.float64)
            alive.append(weakref.ref(batch))
            yield batch
            del batch
            assert sum(one() is not None for one in alive) <= 1

    assert statistics(model, model, batches(), ["encoder.*"], layout_of(model, SIZE)).count == 20


def make_uniform(layout: Layout) -> Tensor:
    return torch.full((1, 1, layout.num_tokens, layout.num_tokens), 1 / layout.num_tokens, dtype=torch.float64)


@pytest.mark.parametrize("prefix", [(), ("cls",), ("cls", "reg0")])
def test_uniform_attention_on_14_x_14_is_7_2808_patches_away(prefix: tuple[str, ...]) -> None:
    layout = Layout(prefix, (14, 14), (16, 16))
    result = measure_weights(make_uniform(layout), group_tokens(layout), len(prefix), compute_patch_distances(layout))
    assert result["distance"].item() == pytest.approx(7.2808, abs=5e-5)
    assert result["entropy"].item() == pytest.approx(math.log(layout.num_tokens))
    assert [result[name].item() for name in ("sink", "diagonal")] == pytest.approx([1 / layout.num_tokens] * 2)
    assert result["patches"].item() == pytest.approx(196 / layout.num_tokens)


def test_diagonal_attention_has_no_distance_and_no_entropy() -> None:
    weights = torch.eye(LAYOUT.num_tokens, dtype=torch.float64)[None, None]
    result = measure_weights(weights, group_tokens(LAYOUT), 3, compute_patch_distances(LAYOUT))
    assert result["distance"].item() == result["entropy"].item() == 0
    assert result["diagonal"].item() == 1


def test_attention_to_one_patch_has_its_distance() -> None:
    weights = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    weights[..., LAYOUT.find_token((1, 2))] = 1
    result = measure_weights(weights, group_tokens(LAYOUT), 3, compute_patch_distances(LAYOUT))
    expected = np.mean([math.hypot(1 - row, 2 - column) for row in range(2) for column in range(3)])
    assert result["distance"].item() == pytest.approx(expected)
    assert result["sink"].item() == result["patches"].item() == 1
    assert result["entropy"].item() == 0


def test_shares_by_kind_of_token_sum_to_one() -> None:
    layout = Layout(("cls", "dist", "reg0", "reg1"), (2, 3), (8, 8))
    weights = torch.randn(2, 3, 10, 10).softmax(-1)
    result = measure_weights(weights, group_tokens(layout), 4, compute_patch_distances(layout).float())
    assert_close(result["registers"], weights[..., 2:4].sum(-1).mean(-1))
    assert_close(result["distillation"], weights[..., 1].mean(-1))
    assert_close(sum(result[name] for name in group_tokens(layout)), torch.ones(2, 3))


def test_attention_to_the_prefix_alone_has_no_distance() -> None:
    weights = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    weights[..., 0] = 1
    weights[:, 1, 4] = 1 / 9
    result = measure_weights(weights, group_tokens(LAYOUT), 3, compute_patch_distances(LAYOUT))["distance"][0]
    assert result[0].isnan()
    row = compute_patch_distances(LAYOUT)[1].mean()
    assert_close(result[1], row)


def test_layers_may_differ_in_heads(images: Tensor, randomise: Randomise) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.few, self.many = vit(heads=2), vit(heads=4)

        def forward(self, images: Tensor) -> Tensor:
            return self.few(images) + self.many(images)

    model = randomise(Both())
    result = statistics(model, model, [images], ["few.*", "many.*"], LAYOUT)
    assert [len(matrix) for matrix in result.similarity] == [2, 2, 4, 4]
    assert [len(one.mean) for one in result.measures["entropy"]] == [2, 2, 4, 4]
    assert_close(
        result.measures["sink"][2].mean,
        statistics(model.many, model.many, [images], ["encoder.*"], LAYOUT).measures["sink"][0].mean,
    )


def test_attention_pool_of_timm_is_skipped_with_its_reason(randomise: Randomise, images: Tensor) -> None:
    model = randomise(
        timm.create_model(
            "vit_base_patch16_siglip_224", embed_dim=D, depth=2, num_heads=H, img_size=SIZE, patch_size=8, num_classes=4
        )
    )
    result = statistics(model, model, [images], ["blocks.*", "attn_pool"], Layout((), (2, 3), (8, 8)))
    assert result.layers == ("blocks.0.attn", "blocks.1.attn")
    assert result.skipped == ("attn_pool attends from 1 to 6 tokens, not to 6",)
    assert "cls" not in result.measures
    with pytest.raises(ValueError, match="from 1 to 6 tokens"):
        statistics(model, model, [images], ["attn_pool"], Layout((), (2, 3), (8, 8)))


def test_invalid_inputs_are_refused(randomise: Randomise, images: Tensor) -> None:
    model = randomise(vit())
    with pytest.raises(ValueError, match="batches must hold images"):
        statistics(model, model, [], ["encoder.*"], LAYOUT)
    with pytest.raises(CaptureError, match="must run"):
        statistics(model, lambda images: images, [images], ["encoder.*"], LAYOUT)
    with pytest.raises(ValueError, match="once for each batch"):
        statistics(
            model,
            lambda images: model(model(images) * 0 + 1 if images.ndim == 2 else images) + model(images),
            [images],
            ["encoder.*"],
            LAYOUT,
        )


def test_model_in_training_mode_is_refused(randomise: Randomise, images: Tensor) -> None:
    model, pairs = randomise(vit()).train(), [(images, torch.full((len(images),), -1))]
    for measure in (
        lambda: statistics(model, model, [images], ["encoder.*"], LAYOUT),
        lambda: compute_head_means(model, model, [images], ["encoder.*"]),
        lambda: ablate_heads(model, model, pairs, ["encoder.*"]),
    ):
        with pytest.raises(ValueError, match=r"model must be in evaluation mode.* call model\.eval\(\)"):
            measure()


def test_statistics_convert_to_json(randomise: Randomise, images: Tensor) -> None:
    model = randomise(vit())
    result = json.loads(
        json.dumps(statistics(model, model, [images[:1]], ["encoder.*"], LAYOUT).to_dict(), allow_nan=False)
    )
    assert result["pictures"] == 1
    assert result["grid"] == [2, 3]
    assert result["units"] == dict.fromkeys(result["measures"], "share") | {"distance": "patches", "entropy": "nats"}
    assert result["measures"]["sink"][1]["deviation"] == [None] * H  # one picture has no spread
    assert np.array(result["similarity"]).shape == (2, H, H)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 1000])
def test_t_quantile_equals_scipy(freedom: int) -> None:
    assert compute_t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3 if freedom > 2 else 1e-9)
    assert math.isnan(compute_t_quantile(0))


def test_moments_do_not_lose_digits_far_from_zero() -> None:
    values = torch.randn(1000, 2, dtype=torch.float64) + 1e8
    moments = Moments()
    for part in values.split(7):
        moments.add(part)
    assert_close(moments.summarise().deviation, values.std(0), rtol=1e-6, atol=0)


def test_equal_models_do_not_differ_and_others_do(randomise: Randomise, images: Tensor) -> None:
    model = randomise(vit())
    before = statistics(model, model, [images], ["encoder.*"], LAYOUT)
    same = compare_statistics(before, before)
    assert same.most == ()
    assert all((one.mean == 0).all() for result in same.differences.values() for one in result)
    with torch.no_grad():  # head 1 of the last layer looks everywhere alike
        model.encoder.blocks[1].attn.f.qkv.weight[8:16] = 0
        model.encoder.blocks[1].attn.f.qkv.bias[8:16] = 0
    after = statistics(model, model, [images], ["encoder.*"], LAYOUT)
    result = compare_statistics(before, after)
    entropy = next(change for change in result.most if change.measure == "entropy")
    assert (entropy.layer, entropy.head) == ("encoder.blocks.1.attn.f", 1)
    assert entropy.after == pytest.approx(math.log(9))
    assert "entropy of head 1 of encoder.blocks.1.attn.f" in str(entropy)
    json.dumps(result.to_dict(), allow_nan=False)


def test_interval_of_a_difference_contains_welchs(randomise: Randomise, images: Tensor) -> None:
    models = [randomise(vit()) for _ in range(2)]
    result = compare_statistics(*(statistics(model, model, [images], ["encoder.*"], LAYOUT) for model in models))
    values = [compute_in_loops(model, images, 3)["sink"][0] for model in models]
    welch = stats.ttest_ind(values[1], values[0], equal_var=False).confidence_interval()
    summary = result.differences["sink"][0]
    assert (summary.low.numpy() <= welch.low + 1e-9).all()
    assert (summary.high.numpy() >= welch.high - 1e-9).all()
    assert ((summary.high - summary.low).numpy() < 1.3 * (welch.high - welch.low)).all()


def test_models_of_other_sizes_are_not_compared(randomise: Randomise, images: Tensor) -> None:
    result = [
        statistics(model, model, [images], ["encoder.*"], LAYOUT)
        for model in (randomise(vit()), randomise(vit(heads=2)))
    ]
    with pytest.raises(ValueError, match="equal layers and heads"):
        compare_statistics(*result)


@pytest.mark.parametrize("table", [Learned, Sinusoidal])
@pytest.mark.parametrize("kind", ["vit", "mae", "clip"])
def test_position_similarity_is_the_cosine(kind: str, table: type[nn.Module], randomise: Randomise) -> None:
    image = ViT(Encoder(D, 1, H), SIZE, (8, 8), 5, table=table)
    models = {
        "vit": image,
        "mae": MAE(Encoder(D, 1, H), Encoder(8, 1, 2), SIZE, (8, 8), table=table),
        "clip": CLIP(image, TextTower(Encoder(D, 1, H, causal=True), context=5, outputs=5)),
    }
    model = randomise(models[kind])
    result = compute_position_similarity(model, SIZE)
    embed = (model.image if kind == "clip" else model).embed
    with torch.no_grad():  # what a patch of zeros becomes
        embed.patches.bias.zero_()
        rows = embed.patchify(torch.zeros(1, 3, *SIZE, dtype=torch.float64))[0][0].unflatten(0, (2, 3))
    for row in range(2):
        for column in range(3):
            expected = torch.cosine_similarity(rows, rows[row, column].expand_as(rows), dim=-1)
            assert_close(result[row, column], expected.to(result), rtol=1e-5, atol=1e-6)


def test_position_similarity_of_timm_excludes_cls(randomise: Randomise) -> None:
    model = randomise(
        timm.create_model(
            "vit_tiny_patch16_224", embed_dim=D, depth=1, num_heads=H, img_size=SIZE, patch_size=8, num_classes=4
        )
    )
    rows = model.pos_embed[0, 1:].detach()
    expected = torch.cosine_similarity(rows[:, None], rows[None], dim=-1).view(2, 3, 2, 3)
    assert_close(compute_position_similarity(model, SIZE), expected)


def test_zero_position_table_is_refused() -> None:
    with pytest.raises(ValueError, match="one of zeros"):
        compute_position_similarity(ViT(Encoder(D, 1, H), SIZE, (8, 8), 5, init=lambda model: None), SIZE)


@torch.no_grad()
def test_selected_image_has_its_mask_and_bias() -> None:
    x, bias = torch.randn(3, 2, 5, 4), torch.randn(3, 1, 5, 5)
    call = Call(x, x.roll(1, 0), x, torch.arange(5) < torch.tensor([2, 3, 5]).view(3, 1, 1, 1), bias, None, None)
    assert_close(select_images(call, slice(1, 2)).compute_weights(), call.compute_weights()[1:2])
