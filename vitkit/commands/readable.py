"""A model whose tokens can be read: a ViT, also a CLIP's image tower, or an MAE's encoder, which hides nothing here.

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
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, MAE, ViT
from vitkit.models.clip import unit
from vitkit.nn import Mean
from vitkit.weights import Opened, at_hand, classes_in, open_model

FINAL = "features"  # the column of the normalised output; that of block 3 is features_3


class Readable(NamedTuple):
    """A model and what belongs to it; `head` makes of what is pooled a number for each class, None without classes.

    `several` says whether a picture may have several of the classes, `source` where the model is from. `embed` makes
    of what is pooled in the end the vector of a picture: a CLIP's embedding, otherwise the same.
    """

    model: ViT | MAE
    pool: nn.Module
    head: nn.Module | None
    preprocess: Preprocess
    classes: tuple[str, ...]
    several: bool
    source: str = ""
    embed: nn.Module = nn.Identity()

    def to(self, device: torch.device) -> None:
        for module in (self.model, self.pool, self.head, self.embed):
            if module is not None:
                module.to(device)


class Dual(NamedTuple):
    """A CLIP and what belongs to it. `source` is where it is from."""

    model: CLIP
    preprocess: Preprocess
    tokenizer: Tokenizer
    source: str


class Embedding(nn.Module):
    """What a CLIP's image tower makes of what it has pooled: rows of length 1."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Float[Tensor, "B D"]) -> Float[Tensor, "B E"]:
        return unit(self.head(pooled))


def open_any(source: str | Path) -> Readable | Dual:
    """Raises: ValueError, one line, for whatever is wrong with a model folder."""
    where = at_hand(source)
    opened = open_model(where)
    if isinstance(opened.model, CLIP):
        return dual(opened, source)
    return readable(opened, Path(where).is_dir() and classes_in(Path(where))[1], source)


def open_readable(source: str | Path) -> Readable:
    """Raises: ValueError, one line, for whatever is wrong with a model folder, and for one of another kind."""
    opened = open_any(source)
    if isinstance(opened, Dual):
        raise ValueError(f"model must be a ViT or an MAE, got {type(opened.model).__name__} in {source}")
    return opened


def open_tower(source: str | Path) -> Readable:
    """Also a CLIP's image tower, whose vectors are embeddings."""
    opened = open_any(source)
    if isinstance(opened, Dual):
        tower = opened.model.image
        return headless(tower, opened.preprocess)._replace(source=opened.source, embed=Embedding(tower.head))
    return opened


def open_dual(source: str | Path) -> Dual:
    """Raises: ValueError, one line, for whatever is wrong with a model folder, and for one of another kind."""
    opened = open_any(source)
    if not isinstance(opened, Dual):
        raise ValueError(f"model must be a CLIP, which reads texts too, got {type(opened.model).__name__} in {source}")
    return opened


def dual(opened: Opened, source: str | Path) -> Dual:
    model, preprocess, _, tokenizer = opened
    if not isinstance(model, CLIP) or tokenizer is None:
        raise ValueError(f"model must be a CLIP with a tokenizer, got {type(model).__name__} in {source}")
    return Dual(model, preprocess, tokenizer, str(source))


def readable(opened: Opened, several: bool, source: str | Path) -> Readable:
    model, preprocess, classes, _ = opened
    match model:
        case MAE():
            return headless(model, preprocess)._replace(source=str(source))
        case ViT() if not classes:
            return headless(model, preprocess)._replace(source=str(source))
        case ViT():
            outputs = model.head.out_features if isinstance(model.head, nn.Linear) else 0
            if outputs != len(classes):
                raise ValueError(f"model must give a number per class, got {outputs} for {len(classes)} classes")
            return Readable(model, model.pool, model.head, preprocess, classes, several, str(source))
    raise ValueError(f"model must be a ViT or an MAE, got {type(model).__name__} in {source}")


def open_classifier(source: str | Path | Readable) -> Readable:
    """Raises: ValueError, as `open_readable`, and for a model without classes."""
    opened = source if isinstance(source, Readable) else open_any(source)
    if isinstance(opened, Dual):
        raise ValueError(
            f"model must have classes, got a CLIP in {source}, which takes them in words: "
            f"vitkit zero-shot {source} PICTURES --unlabelled --classes cat dog"
        )
    if opened.head is None:
        raise ValueError(
            f"model must have classes, got none in {opened.source}; fine-tune it first: "
            f"vitkit fit --config configs/finetune_folder.yaml --pretrained {opened.source} --data.train PICTURES"
        )
    return opened


def untrained(opened: Readable, folder: Path) -> Readable:
    """The same network before any training, without classes, of a CLIP its image tower; always the same numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        built = cast(ViT | MAE | CLIP, configs.build(configs.read(folder / "config.yaml"))).eval()
    return headless(built.image if isinstance(built, CLIP) else built, opened.preprocess)


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
