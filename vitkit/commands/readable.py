"""A model whose tokens can be read: a ViT, or an MAE's encoder, which hides nothing here.

Letters: B batch, C channels, T tokens, D width, h w patches down and across.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitkit import configs
from vitkit.models import MAE, ViT
from vitkit.nn import Mean
from vitkit.preprocess import Preprocess
from vitkit.weights import at_hand, classes_in, open_model

FINAL = "features"  # the column of the normalised output; that of block 3 is features_3


class Readable(NamedTuple):
    """A model and what belongs to it; `head` makes of what is pooled a number for each class, None without classes.

    `several` says whether a picture may have several of the classes.
    """

    model: ViT | MAE
    pool: nn.Module
    head: nn.Module | None
    preprocess: Preprocess
    classes: tuple[str, ...]
    several: bool


def open_readable(source: str | Path) -> Readable:
    """Raises: ValueError, one line, for whatever is wrong with a model folder, and for one of another kind."""
    source = at_hand(source)
    model, preprocess, classes, _ = open_model(source)
    several = Path(source).is_dir() and classes_in(Path(source))[1]
    match model:
        case MAE():
            return headless(model, preprocess)
        case ViT() if not classes:
            return headless(model, preprocess)
        case ViT():
            outputs = model.head.out_features if isinstance(model.head, nn.Linear) else 0
            if outputs != len(classes):
                raise ValueError(f"model must give a number per class, got {outputs} for {len(classes)} classes")
            return Readable(model, model.pool, model.head, preprocess, classes, several)
    raise ValueError(f"model must be a ViT or an MAE, got {type(model).__name__} in {source}")


def open_classifier(source: str | Path) -> Readable:
    """Raises: ValueError, as `open_readable`, and for a model without classes."""
    opened = open_readable(source)
    if opened.head is None:
        raise ValueError(
            f"model must have classes, got none in {source}; fine-tune it first: "
            f"vitkit fit --config configs/finetune_folder.yaml --pretrained {source} --data.train PICTURES"
        )
    return opened


def untrained(opened: Readable, folder: Path) -> Readable:
    """The same network before any training, without classes; always the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = cast(ViT | MAE, configs.build(configs.read(folder / "config.yaml")))
    return headless(model.eval(), opened.preprocess)


def headless(model: ViT | MAE, preprocess: Preprocess) -> Readable:
    pool = model.pool if isinstance(model, ViT) else Mean(model.encoder.dim, len(model.embed.prefix))
    return Readable(model, pool, None, preprocess, (), False)


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
