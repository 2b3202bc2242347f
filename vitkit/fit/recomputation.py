"""Activation checkpointing (https://arxiv.org/abs/1604.06174), applied to the blocks of a model."""

from types import MethodType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.nn import Block
from vitkit.nn.cache import LayerCache


class BlockCheckpointing(Callback):
    """Recomputes every `Block` in the backward pass while a model is fitted."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            checkpoint_blocks(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        restore_blocks(pl_module)  # Lightning does not tear down then

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        restore_blocks(pl_module)


def checkpoint_blocks(model: nn.Module) -> None:
    """Make each `Block` keep only its input in training, and recompute the rest in the backward pass.

    Gradients stay exact, as random numbers are repeated. Modules and weights keep their names. Hooks on modules
    inside a block run twice in a step, and must stay until the backward pass is over. torch.func refuses such a model
    in training.

    Raises: ValueError for a model without blocks, and for blocks whose `forward` is already replaced.
    """
    blocks = list_blocks(model)
    if not blocks:
        raise ValueError(f"checkpoint_blocks must be off for a model without a Block, got {type(model).__name__}")
    if patched := [block for block in blocks if "forward" in vars(block)]:
        raise ValueError(f"checkpoint_blocks must be off where forward was replaced, got {len(patched)} such blocks")
    for block in blocks:
        block.__dict__["forward"] = MethodType(
            recompute_forward, block
        )  # a method, so that a deep copy calls its own block


def restore_blocks(model: nn.Module) -> None:
    """Undo `checkpoint_blocks`."""
    for block in list_blocks(model):
        if getattr(vars(block).get("forward"), "__func__", None) is recompute_forward:
            del block.__dict__["forward"]


def list_blocks(model: nn.Module) -> list[Block]:
    return [module for module in model.modules() if isinstance(module, Block)]


def recompute_forward(block: Block, x: Tensor, *, cache: LayerCache | None = None, **options: Any) -> Tensor:
    """Run `Block.forward`, and again in the backward pass unless it writes to a cache."""
    if block.training and torch.is_grad_enabled() and cache is None:
        return checkpoint(type(block).forward, block, x, use_reentrant=False, **options)
    return type(block).forward(block, x, cache=cache, **options)
