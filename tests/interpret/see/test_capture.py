"""Capture of vitkit's own models against the explicit core; selections, budget, removal of hooks."""

import copy
import math
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit import CLIP, MAE, Attend, Encoder, Mean, TextTower, ViT
from vitkit.interpret.see.capture import capture, format_bytes, parse_indices
from vitkit.interpret.see.coverage import coverage
from vitkit.interpret.see.layers import CaptureError, find_attention_layers
from vitkit.nn import Attention, ExplicitCore, FusedCore
from vitkit.nn.cache import Cache
from vitkit.nn.positions import ALiBi, RelativeBias, Rotary

Draw = Callable[[nn.Module], nn.Module]
SIZE = (24, 40)  # pixels: a grid of 3 x 5


def vit(prefix: int = 3, pool: Callable[[int, int], nn.Module] | None = None, **slots: Any) -> ViT:
    more = {} if pool is None else {"pool": pool}
    return ViT(Encoder(32, 2, 4, **slots), SIZE, (8, 8), 5, prefix=prefix, **more)


def grouped(dim: int, heads: int, memory_dim: int | None, causal: bool) -> Attention:
    return Attention(dim, heads, memory_dim, causal, kv_heads=2)


def normed(dim: int, heads: int, memory_dim: int | None, causal: bool) -> Attention:
    return Attention(dim, heads, memory_dim, causal, qk_norm=nn.RMSNorm, scale=0.7)


def explicit(model: nn.Module) -> list[Tensor]:
    """Return a list that collects the weights of every later pass of this copy of a model."""
    result: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, Attention):
            module.core = ExplicitCore()
            module.core.weights.register_forward_hook(lambda _, arguments, output: result.append(output.detach()))
    return result


def check_capture(model: nn.Module, run: Callable[[Any], Tensor], *patterns: str | int) -> None:
    """Check that captured weights equal those of the explicit core, and that the output is unchanged."""
    reference = copy.deepcopy(model)
    expected = explicit(reference)
    with torch.no_grad():
        plain = run(model)
        with capture(model, *patterns) as attention:
            watched = run(model)
        run(reference)
    assert torch.equal(plain, watched)
    assert len(attention) == len(expected) > 0
    for own, weights in zip(attention.values(), expected, strict=True):
        torch.testing.assert_close(own.weights, weights.to(own.weights.dtype), rtol=0, atol=1e-6)
        sums = own.weights.sum(-1)
        assert ((sums - 1).abs().le(1e-6) | (sums == 0)).all()
        assert own.weights.std() > 1e-3  # not uniform


VARIANTS: dict[str, Callable[[], ViT]] = {
    "cls and registers": vit,
    "mean": lambda: vit(0, Mean),
    "attend": lambda: vit(0, partial(Attend, heads=2)),
    "rotary": lambda: vit(position=partial(Rotary, axes=2)),
    "relative": lambda: vit(position=partial(RelativeBias, axes=2, prefix=3)),
    "alibi": lambda: vit(position=partial(ALiBi, prefix=3)),
    "grouped": lambda: vit(attention=grouped),
    "normed": lambda: vit(attention=normed),
    "causal": lambda: vit(causal=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_those_of_the_explicit_core(variant: str, dtype: torch.dtype, randomise: Draw) -> None:
    model = randomise(VARIANTS[variant]()).to(dtype)
    images = torch.randn(2, 3, *SIZE, dtype=dtype)
    check_capture(model, lambda model: model(images))


def test_bfloat16_weights_are_float32_softmaxes(randomise: Draw) -> None:
    model = randomise(vit()).bfloat16()
    calls: list[tuple[Tensor, Tensor]] = []
    core = model.encoder.blocks[0].attn.f.core
    core.register_forward_pre_hook(lambda _, arguments: calls.append(arguments[:2]))
    images = torch.randn(2, 3, *SIZE, dtype=torch.bfloat16)
    with torch.no_grad():
        with capture(model) as attention:
            watched = model(images)
        assert torch.equal(watched, model(images))  # where gradients are needed, another core may be the faster
    q, k = (x.detach().double() for x in calls[0])
    expected = (q @ k.mT / 8**0.5).softmax(-1).float()
    torch.testing.assert_close(attention.get_layer(0).weights, expected, rtol=0, atol=1e-6)


def test_mae_and_its_decoder_show_their_weights(randomise: Draw) -> None:
    model = randomise(MAE(Encoder(32, 2, 4), Encoder(16, 1, 2), SIZE, (8, 8), ratio=0.5))
    images, noise = torch.randn(2, 3, *SIZE).double(), torch.rand(2, 3, 5)
    check_capture(model, lambda model: model(images, noise).pixels)
    check_capture(model, lambda model: model.features(images), "encoder")


def test_both_towers_of_a_clip_show_their_weights(randomise: Draw) -> None:
    text = TextTower(Encoder(32, 2, 4, causal=True), 50, 6, 8)
    model = randomise(CLIP(ViT(Encoder(32, 2, 4), SIZE, (8, 8), 8), text))
    images, ids = torch.randn(2, 3, *SIZE).double(), torch.randint(1, 49, (3, 6))
    text.pool.end = 49
    ids[:, 4] = 49
    check_capture(model, lambda model: model(images, ids).text)
    with torch.no_grad(), capture(model, "text.*") as attention:
        model(images, ids)
    assert len(attention) == 2
    assert all(own.weights.triu(1).count_nonzero() == 0 for own in attention.values())


def test_cross_attention_respects_a_partial_mask(randomise: Draw) -> None:
    model = randomise(Encoder(32, 2, 4, memory_dim=24, causal=True))
    x, memory = torch.randn(2, 3, 32).double(), torch.randn(2, 5, 24).double()
    mask = torch.ones(2, 1, 3, 5, dtype=torch.bool)
    mask[0, :, :, 3:] = False
    mask[1, :, 1] = False  # this query may see nothing
    places = torch.arange(3)[None, :, None]
    check_capture(model, lambda model: model(x, places, memory=memory, memory_mask=mask))
    with torch.no_grad(), capture(model, "blocks.1.cross*") as attention:
        model(x, places, memory=memory, memory_mask=mask)
    [cross] = attention.values()
    assert cross.weights.shape == (2, 4, 3, 5)
    assert not cross.weights[0, :, :, 3:].any()
    assert not cross.weights[1, :, 1].any()


def test_cached_weights_equal_one_pass(randomise: Draw) -> None:
    model = randomise(Encoder(32, 2, 4, causal=True))
    x, places = torch.randn(2, 5, 32).double(), torch.arange(5)[None, :, None]
    with torch.no_grad(), capture(model) as whole:
        model(x, places)
    cache = Cache(5)
    with torch.no_grad(), capture(model) as parts:
        model(x[:, :3], places[:, :3], cache=cache)
        model(x[:, 3:], places[:, 3:], cache=cache)
    names = list(whole)
    assert list(parts) == [*names, *(f"{name}#2" for name in names)]
    for name in names:
        torch.testing.assert_close(parts[f"{name}#2"].weights, whole[name].weights[:, :, 3:])


@pytest.mark.parametrize("core", [FusedCore, ExplicitCore])
def test_weights_are_equal_for_every_core(core: type[nn.Module], randomise: Draw) -> None:
    model = randomise(vit())
    for module in find_attention_layers(model).values():
        module.core = core()
    images = torch.randn(1, 3, *SIZE).double()
    check_capture(model, lambda model: model(images))


def test_only_selected_heads_and_queries_are_stored(randomise: Draw) -> None:
    model, images = randomise(vit(attention=grouped)), torch.randn(2, 3, *SIZE).double()
    with torch.no_grad(), capture(model) as whole, capture(model, -1, heads=[3, 0], queries=[5, 0, 1]) as some:
        model(images)
    [own] = some.values()
    assert (own.layer, own.heads, own.queries, own.kind) == ("encoder.blocks.1.attn.f", (3, 0), (5, 0, 1), "kernel")
    torch.testing.assert_close(own.weights, whole.get_layer(-1).weights[:, [3, 0]][:, :, [5, 0, 1]])
    assert own.weights.untyped_storage().nbytes() == 2 * 2 * 3 * 18 * 8


def test_gradients_of_weights_are_those_of_the_explicit_core(randomise: Draw) -> None:
    model, images = randomise(vit()), torch.randn(2, 3, *SIZE).double()
    with capture(model, gradient=True) as attention:
        score = model(images)[:, 2].sum()
    result = torch.autograd.grad(score, [own.weights for own in attention.values()])
    reference = copy.deepcopy(model)
    taps: list[Tensor] = []
    for module in reference.modules():
        if isinstance(module, Attention):
            module.core = ExplicitCore()
            module.core.weights.register_forward_hook(lambda _, arguments, output: taps.append(output))
    expected = torch.autograd.grad(reference(images)[:, 2].sum(), taps)
    for own, other in zip(result, expected, strict=True):
        torch.testing.assert_close(own, other)
    with torch.no_grad(), pytest.raises(ValueError, match="gradients enabled"), capture(model, gradient=True):
        model(images)


@pytest.fixture
def watched() -> Iterator[tuple[ViT, Tensor]]:
    """A model in training mode but for one part, that must be left as it is."""
    model = vit()
    model.encoder.blocks[0].eval()
    before = (list(model.state_dict()), [part.training for part in model.modules()])
    own = [dict(part.__dict__) for part in model.modules()]
    yield model, torch.randn(2, 3, *SIZE)
    assert before == (list(model.state_dict()), [part.training for part in model.modules()])
    for part, attributes in zip(model.modules(), own, strict=True):
        assert part.__dict__.keys() == attributes.keys()
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert not torch.overrides._get_current_function_mode_stack()


def test_hooks_are_removed(watched: tuple[ViT, Tensor]) -> None:
    model, images = watched
    with capture(model), capture(model, 0):
        model(images)


def test_an_exception_inside_is_the_one_that_is_raised(watched: tuple[ViT, Tensor]) -> None:
    model, _ = watched
    with pytest.raises(ZeroDivisionError), capture(model):
        raise ZeroDivisionError  # before any layer has run


def test_an_exception_of_the_model_leaves_nothing_behind() -> None:
    class LoudAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("too loud")

    model = nn.Sequential(LoudAttention())
    with pytest.raises(RuntimeError, match="too loud"), capture(model), capture(model):
        model(torch.ones(1))
    assert not torch.overrides._get_current_function_mode_stack()
    assert not model[0]._forward_hooks


def test_another_thread_is_not_recorded() -> None:
    model, images, other = vit().eval(), torch.randn(1, 3, *SIZE), torch.randn(4, 3, *SIZE)
    with torch.no_grad(), capture(model) as attention:
        for run in (lambda: model(other), lambda: model(images)):
            thread = threading.Thread(target=torch.no_grad()(run))
            thread.start()
            thread.join()
        assert not attention
        model(images)
    assert [len(own.weights) for own in attention.values()] == [1, 1]


def test_a_layer_that_did_not_run_is_an_error(randomise: Draw) -> None:
    model = randomise(MAE(Encoder(32, 1, 4), Encoder(16, 1, 2), SIZE, (8, 8)))
    with (
        pytest.raises(CaptureError, match=r"1 of 2 selected layers .* decoder\.encoder\.blocks\.0\.attn\.f"),
        capture(model),
    ):
        model.features(torch.randn(1, 3, *SIZE).double())


def test_checkpointed_layer_is_captured_twice(randomise: Draw) -> None:
    model = randomise(vit())
    block, layer = model.encoder.blocks[0], "encoder.blocks.0.attn.f"
    x = torch.randn(1, 4, 32, dtype=torch.double, requires_grad=True)
    with capture(model, 0) as attention:
        checkpoint(block, x, use_reentrant=False).sum().backward()
    assert list(attention) == [layer, f"{layer}#2"]
    assert torch.equal(attention[layer].weights, attention[f"{layer}#2"].weights)


def test_a_module_with_two_names_is_one_layer(randomise: Draw) -> None:
    shared = Attention(8, 2)
    model = randomise(nn.ModuleDict({"first": nn.Sequential(shared), "second": nn.Sequential(shared)}))
    x = torch.randn(1, 3, 8).double()
    for pattern in ((), ("second",), ("second.0",), ("*",), (0,)):
        with capture(model, *pattern) as attention:
            model["second"](model["first"](x))
        assert list(attention) == ["first.0", "first.0#2"]


@pytest.mark.compile
@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_is_captured_and_compiled_again_afterwards(whole: bool, randomise: Draw) -> None:
    model, images = randomise(vit()).float(), torch.randn(2, 3, *SIZE)
    if whole:
        model = torch.compile(model)
    else:
        model.compile()
    with torch.no_grad():
        before = model(images)
        with capture(model) as attention:
            inside = model(images)
        after = model(images)
    assert len(attention) == 2
    assert torch.equal(before, after)
    torch.testing.assert_close(inside, before, rtol=1e-4, atol=1e-4)


def test_more_than_the_budget_is_refused_before_a_layer_is_computed(randomise: Draw) -> None:
    model, images = randomise(vit()), torch.randn(2, 3, *SIZE).double()
    size = 2 * 2 * 4 * 18 * 18 * 8  # of both layers, in float64
    with capture(model, budget=size) as attention:
        model(images)
    assert sum(own.weights.nbytes for own in attention.values()) == size
    message = r"got budget=20 KB for 41\.47 KB, of which a layer such as encoder\.blocks\.0\.attn\.f takes 20\.74 KB"
    with pytest.raises(ValueError, match=message), capture(model, budget="20 kB") as attention:
        model(images)
    assert not attention
    with capture(model.float(), budget=size // 2):
        model(images.float())


def test_bytes_are_formatted_with_units() -> None:
    assert [format_bytes(size) for size in (12, 1_500, 999_990, 4_834_200_000)] == [
        "12 B",
        "1.5 KB",
        "1000 KB",
        "4.834 GB",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "much"}, "got budget=much"),
        ({"budget": "1.2.3GB"}, "got budget=1.2.3GB"),
        ({"budget": -1}, "budget must be a number of bytes, or such as 500MB or 2GB, got budget=-1"),
        ({"budget": math.inf}, "got budget=inf"),
        ({"budget": 1e3}, "got budget=1 KB for"),  # as numbers are often written
        ({"heads": [4]}, r"heads must be from 0 to 3 in encoder\.blocks\.0\.attn\.f, got \[4\]"),
        ({"queries": [-1]}, r"queries must be from 0 to 17 .*, got \[-1\]"),
        ({"queries": []}, r"queries must be from 0 to 17 .*, got \[\]"),
        ({"heads": [1, 1]}, r"heads must be named once each, got \[1, 1\]"),
        ({"queries": [0], "gradient": True}, "gradient must come with all heads"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    model = vit().eval()
    with pytest.raises(ValueError, match=message), capture(model, **options):
        model(torch.randn(1, 3, *SIZE))


def test_indices_may_be_any_sequence_but_not_a_number() -> None:
    for asked in ([2, 0], range(2, -1, -2), torch.tensor([2, 0]), np.array([2, 0]), iter([2, 0])):
        assert parse_indices("heads", asked) == (2, 0)
    assert parse_indices("heads", None) is None
    for asked in (0, torch.tensor(0)):
        with pytest.raises(ValueError, match=r"queries must be a list, got queries=.*; write queries=\["):
            parse_indices("queries", asked)


@pytest.mark.parametrize("pattern", ["encoder.block.1", 2, -3])
def test_unknown_pattern_suggests_near_names(pattern: str | int) -> None:
    message = rf"got {pattern}; it has 2, from 0 to 1, such as encoder\.blocks\.[01]\.attn\.f"
    with pytest.raises(ValueError, match=message), capture(vit(), 0, pattern):
        pass


def test_coverage_lists_every_layer() -> None:
    model = vit(0, partial(Attend, heads=2)).eval()
    table = coverage(model, torch.randn(2, 3, *SIZE))
    assert [(row.layer, row.kind, row.calls, row.shape) for row in table] == [
        ("encoder.blocks.0.attn.f", "kernel", 1, (2, 4, 15, 15)),
        ("encoder.blocks.1.attn.f", "kernel", 1, (2, 4, 15, 15)),
        ("pool.attn", "kernel", 1, (2, 2, 1, 15)),
    ]
    assert str(table[2]) == "pool.attn (Attention): kernel, 1 x (2, 2, 1, 15)"
