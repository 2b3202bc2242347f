from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit import losses
from vitkit.bench.timing import measure_peak
from vitkit.data.images import Images
from vitkit.fit.recomputation import BlockCheckpointing, checkpoint_blocks, restore_blocks
from vitkit.models import CLIP, MAE, TextTower, ViT
from vitkit.models.clip import Pair
from vitkit.nn import Attention, Block, Cache, Encoder, PreNorm, RelativeBias
from vitkit.tasks.classify import Classify

Step = Callable[[], Tensor]


def encoder(dim: int = 16, depth: int = 3, **options: Any) -> Encoder:
    """With everything that draws random numbers in training."""
    attention, residual = partial(Attention, dropout=0.2), partial(PreNorm, dropout=0.1, scale=0.5)
    return Encoder(dim, depth, 2, drop_path=0.4, attention=attention, residual=residual, **options)


def vit() -> tuple[nn.Module, Step]:
    position = partial(RelativeBias, axes=2, prefix=1)
    model = ViT(encoder(position=position), (8, 12), (4, 4), 6).double()
    images = torch.randn(3, 3, 8, 12, dtype=torch.float64)
    return model, lambda: model(images).square().sum()


def mae() -> tuple[nn.Module, Step]:
    model = MAE(encoder(), encoder(8, 2), (8, 12), (4, 4)).double()
    images = torch.randn(3, 3, 8, 12, dtype=torch.float64)
    return model, lambda: model(images).pixels.square().sum()


def contrast(pair: Pair) -> Tensor:
    positives = torch.arange(len(pair.image))
    return losses.softmax(pair, pair, positives, positives)


def clip() -> tuple[nn.Module, Step]:
    image = ViT(encoder(), (8, 12), (4, 4), 6)
    model = CLIP(image, TextTower(encoder(causal=True), 49408, 6, 6)).double()
    images, ids = torch.randn(3, 3, 8, 12, dtype=torch.float64), torch.tensor([[5, 7, 49407]] * 3)
    return model, lambda: contrast(model(images, ids))


def gradients(model: nn.Module, step: Step) -> dict[str, Tensor]:
    torch.manual_seed(1)
    loss = step()
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))


exactly_equal = partial(assert_close, rtol=0, atol=0)


@pytest.mark.parametrize("make", [vit, mae, clip])
def test_gradients_are_equal_bit_for_bit(make: Callable[[], tuple[nn.Module, Step]]) -> None:
    model, step = make()
    expected = gradients(model, step)
    names, modules = list(model.state_dict()), list(dict(model.named_modules()))
    checkpoint_blocks(model)
    exactly_equal(gradients(model, step), expected)
    assert (list(model.state_dict()), list(dict(model.named_modules()))) == (names, modules)
    with pytest.raises(AssertionError, match="not equal"):  # there was something to draw
        exactly_equal(gradients(model.eval(), step), expected)


def test_each_block_runs_twice_in_training_and_once_otherwise() -> None:
    model, step = vit()
    passes: Counter[str] = Counter()
    for name, module in model.named_modules():
        if name.endswith((".attn", ".mlp")):
            module.register_forward_pre_hook(lambda *_, name=name: passes.update([name]))

    def count() -> set[int]:
        passes.clear()
        gradients(model, step)
        return set(passes.values())

    assert count() == {1}
    checkpoint_blocks(model)
    assert count() == {2} and len(passes) == 6
    model.eval()
    assert count() == {1}
    model.train()
    restore_blocks(model)
    assert count() == {1}


def test_step_needs_less_memory() -> None:
    """Of 12 blocks, the inputs and one block in place of all that they compute."""
    model = ViT(Encoder(32, 12, 2), (32, 32), (4, 4), 5)
    images = torch.randn(8, 3, 32, 32)

    def step() -> None:
        model(images).sum().backward()

    step()  # makes the gradients
    whole = measure_peak(step, images.device)
    checkpoint_blocks(model)
    assert measure_peak(step, images.device) < 0.4 * whole


def test_copy_calls_its_own_blocks() -> None:
    model, _ = vit()
    checkpoint_blocks(model)
    twin, images = deepcopy(model).eval(), torch.randn(1, 3, 8, 12, dtype=torch.float64)
    before = twin(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(twin(images), before)


def test_cache_is_written_once() -> None:
    trunk = Encoder(16, 2, 2, causal=True)
    x, positions = torch.randn(1, 4, 16), torch.arange(4).view(1, 4, 1)
    expected = torch.autograd.grad(trunk(x, positions, cache=Cache(4)).sum(), list(trunk.parameters()))
    checkpoint_blocks(trunk)
    cache = Cache(4)
    got = torch.autograd.grad(trunk(x, positions, cache=cache).sum(), list(trunk.parameters()))
    exactly_equal(got, expected)
    assert {layer.length for layer in cache.layers.values()} == {4}


def test_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint_blocks must be off for a model without a Block, got Linear"):
        checkpoint_blocks(nn.Linear(2, 2))


class Tripled(Block):
    """A block that somebody derived."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        return 3 * super().forward(x, **options)


def test_subclass_of_block_keeps_its_forward() -> None:
    trunk = Encoder(16, 2, 2)
    block = trunk.blocks[1]
    assert isinstance(block, Block)
    trunk.blocks[1] = Tripled(block.attn, None, block.mlp)
    x, positions = torch.randn(2, 4, 16), torch.arange(4).view(1, 4, 1)
    expected = trunk(x, positions)
    checkpoint_blocks(trunk)
    exactly_equal(trunk(x, positions), expected)


def test_replaced_forward_is_refused() -> None:
    trunk = Encoder(16, 2, 2)
    own = trunk.blocks[1].forward = partial(trunk.blocks[1].forward)
    with pytest.raises(ValueError, match="checkpoint_blocks must be off where forward was replaced, got 1 such block"):
        checkpoint_blocks(trunk)
    restore_blocks(trunk)
    assert trunk.blocks[1].forward is own and "forward" not in vars(trunk.blocks[0])


def test_failed_fit_restores_blocks(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    (block,) = (module for module in model.modules() if isinstance(module, Block))

    def fail(*_: Any) -> None:
        assert "forward" in vars(block)
        raise RuntimeError("no more")

    block.mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="no more"):
        trainer(callbacks=[BlockCheckpointing()]).fit(Classify(model, lr=0.1), datamodule=few(batch=5, validation=8))
    assert "forward" not in vars(block)


def test_fit_recomputes_in_training_and_restores_blocks(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    passes: Counter[bool] = Counter()
    (block,) = (module for module in model.modules() if isinstance(module, Block))
    block.mlp.register_forward_pre_hook(lambda *_: passes.update([block.training]))
    fitted = trainer(callbacks=[BlockCheckpointing()])
    fitted.fit(Classify(model, lr=0.1), datamodule=few(batch=5, validation=8))
    assert passes == {True: 2 * fitted.global_step, False: 2} and fitted.global_step == 5
    assert "forward" not in vars(block)
