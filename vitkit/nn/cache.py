"""Keys and values of earlier tokens, for decoding step by step. The caller makes a cache; the encoder appends to it.

B batch, T new tokens, S tokens so far, K key/value heads, Dh head width, A position axes.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from vitkit.nn import masks


class LayerCache:
    """Keys and values of one layer: those of all tokens so far, and those of the memory once they are computed."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.past: tuple[Tensor, Tensor] | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    def add(
        self, k: Float[Tensor, "B K T Dh"], v: Float[Tensor, "B K T Dh"]
    ) -> tuple[Float[Tensor, "B K S Dh"], Float[Tensor, "B K S Dh"]]:
        """Append the new keys and values in place and return views of all so far."""
        if self.past is None:
            shape = *k.shape[:2], self.capacity, k.shape[3]
            self.past = k.new_empty(shape), v.new_empty(shape)
        start, self.length = self.length, self.length + k.shape[2]
        keys, values = (past[:, :, : self.length] for past in self.past)
        keys[:, :, start:], values[:, :, start:] = k, v
        return keys, values

    def select(self, rows: Int[Tensor, " rows"], memory: bool) -> None:
        self.past = self.past and (self.past[0].index_select(0, rows), self.past[1].index_select(0, rows))
        if memory and self.memory is not None:
            self.memory = self.memory[0].index_select(0, rows), self.memory[1].index_select(0, rows)


class Cache:
    """Keys and values of all layers of an encoder, with room for `capacity` tokens.

    `valid` (B, P) is False for padding among the first P tokens. Padding is never attended to.
    """

    def __init__(self, capacity: int, valid: Bool[Tensor, "B P"] | None = None) -> None:
        self.capacity, self.length = capacity, 0
        self.valid = None if valid is None else F.pad(valid, (0, capacity - valid.shape[1]), value=True)
        self.positions: Tensor | None = None
        self.layers: dict[int, LayerCache] = {}

    def get_layer(self, index: int) -> LayerCache:
        return self.layers.setdefault(index, LayerCache(self.capacity))

    @property
    def mask(self) -> Bool[Tensor, "B 1 1 S"] | None:
        """The mask of all keys so far, which hides padding; None without `valid`."""
        return None if self.valid is None else masks.padding(self.valid[:, : self.length])

    def extend(self, positions: Real[Tensor, "b T A"]) -> Real[Tensor, "b S A"]:
        """Append the positions of T new tokens and return those of all S tokens so far. Call it once per forward pass.

        Raises: ValueError for more tokens than the capacity.
        """
        self.length += positions.shape[1]
        if self.length > self.capacity:
            raise ValueError(f"capacity must hold all tokens, got capacity={self.capacity} for {self.length} tokens")
        self.positions = positions if self.positions is None else torch.cat([self.positions, positions], dim=1)
        return self.positions

    def select(self, rows: Int[Tensor, " rows"], *, memory: bool = True) -> None:
        """Keep, repeat or reorder sequences: row i becomes the former row rows[i].

        Args: memory: False leaves the keys and values of the memory in place, which saves a long copy at every step.
            Rows may then move only among those with the same memory, as the beams of one sentence do.
        """
        for layer in self.layers.values():
            layer.select(rows, memory)
        self.valid = None if self.valid is None else self.valid.index_select(0, rows)
        if self.positions is not None and len(self.positions) > 1:
            self.positions = self.positions.index_select(0, rows)
