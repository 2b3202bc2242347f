"""What all ranks have: features, with gradients back to where they came from, and lists of any objects."""

from typing import Any, TypeVar, cast

import torch
from jaxtyping import Shaped
from torch import Tensor, distributed

Part = TypeVar("Part")


def together(x: Shaped[Tensor, "own ..."]) -> Shaped[Tensor, "all ..."]:
    """The rows of all ranks, in the order of the ranks, which may have unequal numbers of them.

    The gradient of a row is the sum of those that every rank has for it.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return x
    return cast(Tensor, _Gather.apply(x))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        size = torch.tensor([len(x)], device=x.device)
        sizes = [torch.empty_like(size) for _ in range(distributed.get_world_size())]
        distributed.all_gather(sizes, size)
        counts = [int(one) for one in sizes]
        # Collectives want equal shapes.
        padded = torch.cat([x, x.new_zeros(max(counts) - len(x), *x.shape[1:])]).contiguous()
        parts = [torch.empty_like(padded) for _ in counts]
        distributed.all_gather(parts, padded)
        rank = distributed.get_rank()
        ctx.rows = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        distributed.all_reduce(total)
        return total[ctx.rows]


def gather_in_order(parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...] | None:
    """Return the columns of all ranks' parts, sorted by the first, which are indices; None where there are no parts.

    The columns are equal on all ranks, and those of one process, whichever rank had which samples.
    """
    if not (everyone := gathered(parts)):
        return None
    columns = [torch.cat(column) for column in zip(*everyone, strict=True)]
    order = columns[0].argsort()
    return tuple(column[order] for column in columns)


def gathered(parts: list[Part]) -> list[Part]:
    """Those of all ranks."""
    if not distributed.is_initialized():
        return parts
    everyone: list[list[Part]] = [[]] * distributed.get_world_size()
    distributed.all_gather_object(everyone, parts)
    return [part for rank in everyone for part in rank]
