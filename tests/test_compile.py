"""Compiled and exported models equal eager ones. Shape checks are off, since they break the graph."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from vitkit.fit.recomputation import checkpoint_blocks
from vitkit.models import CLIP, MAE, TextTower, ViT
from vitkit.nn import ALiBi, Attention, Cache, Encoder, Position, RelativeBias, Rotary, Sinusoidal

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def reset_compiler() -> None:
    torch.compiler.reset()  # the models share one forward, and so one limit on recompilations


SCHEMES = [Position, partial(Rotary, axes=2), partial(ALiBi, prefix=1), partial(RelativeBias, axes=2, prefix=1)]


@pytest.mark.parametrize("position", SCHEMES)
@pytest.mark.parametrize("train", [False, True])
def test_compiled_equals_eager_in_one_graph(position, train):
    encoder = Encoder(32, 2, 4, position=position, attention=partial(Attention, kv_heads=2))
    model = ViT(encoder, (16, 24), (8, 8), 5).train(train)
    names, images = list(model.state_dict()), torch.randn(2, 3, 16, 24)
    expected = model(images)
    grads = torch.autograd.grad(expected.sum(), list(model.parameters()))
    model.compile(fullgraph=True, backend="aot_eager")
    output = model(images)
    assert_close(output, expected)
    assert_close(torch.autograd.grad(output.sum(), list(model.parameters())), grads)
    assert list(model.state_dict()) == names


def test_compiled_checkpointed_blocks_equal_eager():
    model = ViT(Encoder(32, 2, 4), (16, 24), (8, 8), 5)
    images = torch.randn(2, 3, 16, 24)
    expected = torch.autograd.grad(model(images).sum(), list(model.parameters()))
    checkpoint_blocks(model)
    model.compile(fullgraph=True, backend="aot_eager")
    assert_close(torch.autograd.grad(model(images).sum(), list(model.parameters())), expected)


def test_compiled_clip_equals_eager_for_texts_of_any_length():
    vit, text = ViT(Encoder(32, 2, 2), (16, 24), (8, 8), 6), TextTower(Encoder(32, 2, 2, causal=True), outputs=6)
    model = CLIP(vit, text, bias=-10.0)
    pairs = [(torch.randn(2, 3, 16, 24), torch.tensor([[5] * length + [49407]] * 2)) for length in (3, 9, 6)]
    expected = [model(*pair) for pair in pairs]
    model.compile(fullgraph=True, backend="aot_eager")
    for pair, output in zip(pairs, expected, strict=True):
        assert_close(tuple(model(*pair)), tuple(output))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_mae_equals_eager_in_one_graph(dtype):
    model = MAE(Encoder(32, 2, 4), Encoder(16, 1, 2), (16, 24), (8, 8)).to(dtype)
    images, noise = torch.randn(2, 3, 16, 24).to(dtype), torch.rand(2, 2, 3)
    expected = model(images, noise)
    grads = torch.autograd.grad(expected.pixels.sum(), list(model.parameters()))
    model.compile(fullgraph=True, backend="aot_eager")
    output = model(images, noise)
    assert_close(output, expected)
    assert_close(torch.autograd.grad(output.pixels.sum(), list(model.parameters())), grads)


def test_compiled_bfloat16_equals_eager():
    model = ViT(Encoder(32, 2, 4), (16, 24), (8, 8), 5).eval().bfloat16()
    images = torch.randn(2, 3, 16, 24).bfloat16()
    assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(images), model(images))


def test_inductor_equals_eager():
    model, images = ViT(Encoder(32, 2, 4), (16, 24), (8, 8), 5).eval(), torch.randn(2, 3, 16, 24)
    assert_close(torch.compile(model, fullgraph=True)(images), model(images))


def test_exported_equals_eager_at_another_batch_size():
    model = ViT(Encoder(32, 2, 4, position=partial(Rotary, axes=2)), (16, 24), (8, 8), 5, table=Sinusoidal).eval()
    batch = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    program = torch.export.export(model, (torch.randn(3, 3, 16, 24),), dynamic_shapes=batch)
    images = torch.randn(7, 3, 16, 24)
    assert_close(program.module()(images), model(images))


def test_compiled_cached_decoding_equals_eager():
    encoder = Encoder(32, 2, 4, causal=True, position=Rotary).eval()
    x, places = torch.randn(1, 3, 32), torch.arange(3)[None, :, None]
    compiled = torch.compile(encoder, backend="aot_eager")
    with torch.no_grad():
        cache = Cache(3)
        steps = [compiled(x[:, t : t + 1], places[:, t : t + 1], cache=cache) for t in range(3)]
        assert_close(torch.cat(steps, dim=1), encoder(x, places))
