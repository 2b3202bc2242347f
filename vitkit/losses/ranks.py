"""Gather features from all ranks, with gradients back to their rank, and lists of objects."""

from typing import Any, TypeVar, cast

import torch
from jaxtyping import Shaped
from torch import Tensor, distributed

Part = TypeVar("Part")


def gather_with_gradient(x: Shaped[Tensor, "local ..."]) -> Shaped[Tensor, "all ..."]:
    """Gather the rows of all ranks, in the order of the ranks, which may have unequal numbers of rows.

    The gradient of a row is the sum of its gradients on all ranks.
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
        counts = [int(size) for size in sizes]
        # Collectives need equal shapes.
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
    """Return the columns of the parts of all ranks, sorted by the first, which holds indices; None without parts.

    The result is the same on all ranks and in one process, for any distribution of the samples over ranks.
    """
    if not (all_parts := gather_objects(parts)):
        return None
    columns = [torch.cat(column) for column in zip(*all_parts, strict=True)]
    order = columns[0].argsort()
    return tuple(column[order] for column in columns)


def gather_objects(parts: list[Part]) -> list[Part]:
    """Return the parts of all ranks, in their order."""
    if not distributed.is_initialized():
        return parts
    lists: list[list[Part]] = [[]] * distributed.get_world_size()
    distributed.all_gather_object(lists, parts)
    return [part for rank in lists for part in rank]
