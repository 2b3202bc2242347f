"""A model whose tokens can be read: a ViT, also a CLIP's image tower, or an MAE's encoder, which hides nothing here.

Letters: B batch, C channels, T tokens, D width, h w patches down and across.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from vitkit.models import MAE, ViT

FINAL = "features"  # the column of the normalised output; that of block 3 is features_3


def tokens_of(model: ViT | MAE, images: Float[Tensor, "B C H W"], layers: Sequence[int]) -> dict[str, Tensor]:
    """(B, T, D) for each column: the outputs of these blocks, or, without any, the final normalised output."""
    with outputs([model.encoder.blocks[layer] for layer in layers]) as seen:
        final = model.features(images)
    return {f"{FINAL}_{layer}": tokens for layer, tokens in zip(layers, seen, strict=True)} or {FINAL: final}


@contextmanager
def outputs(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What these modules, in the order in which they run, give while this is open."""
    seen: list[Tensor] = []

    def record(module: nn.Module, arguments: object, output: Tensor) -> None:
        seen.append(output)

    hooks = [module.register_forward_hook(record) for module in modules]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def spread(model: ViT | MAE, tokens: Float[Tensor, "B T D"], size: tuple[int, int]) -> Float[Tensor, "B D h w"]:
    """The tokens of the patches, without CLS and registers, where they stand in the image."""
    return tokens[:, len(model.embed.prefix) :].mT.unflatten(2, model.embed.grid(*size))


def blocks(layers: Sequence[int], depth: int) -> list[int]:
    """Places from 0, ascending, each once."""
    if wrong := [layer for layer in layers if not -depth <= layer < depth]:
        raise ValueError(f"layers must be from {-depth} to {depth - 1}, got {', '.join(map(str, wrong))}")
    return sorted({layer % depth for layer in layers})
