"""Held-out pictures and captions in one space, and what finds what. N pictures, M different captions, E embedding."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor

from vitkit.data.annotations.captions import Captioned, by_spelling, normalise_caption
from vitkit.data.data_module import place
from vitkit.data.order import Pick, draw_samples
from vitkit.data.pairs import Pairs
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.recall import TOP, Recall, recall
from vitkit.inference.embeddings import encode_rows
from vitkit.losses.contrastive import Contrast
from vitkit.losses.ranks import gathered
from vitkit.models import CLIP, Pair
from vitkit.support.contact_sheet import Tile, contact_sheet

SHOWN, FIRST = 12, 5  # captions in a drawing, and pictures of each
ANEW = -1  # no epoch has this number, so nothing was varied under its seeds


class ValidationPairs(NamedTuple):
    """Args: indices: where in their source the pictures are. pairs: (picture, caption), all that belong together.

    first: of each picture the caption that it has first. concepts: see `Captioned`.
    """

    indices: list[int]
    images: Float[Tensor, "N E"]
    texts: tuple[str, ...]
    captions: Float[Tensor, "M E"]
    pairs: Int64[Tensor, "P 2"]
    first: Int64[Tensor, " N"]
    concepts: Int64[Tensor, " N"]

    def recalls(self) -> dict[str, Recall]:
        """How far in front the captions of a picture are, and the pictures of a caption."""
        return {
            "text_recall": recall(self.images, self.captions, self.pairs),
            "image_recall": recall(self.captions, self.images, self.pairs.flip(1)),
        }

    def metrics(self) -> dict[str, float]:
        """`recall` is the mean of the six."""
        measured: dict[str, float] = {}
        medians: dict[str, float] = {}
        for name, one in self.recalls().items():
            measured |= {f"{name}_{k}": share for k, share in one.at.items()}
            medians[f"{name.removesuffix('recall')}median_rank"] = one.median
        return {"recall": sum(measured.values()) / len(measured), **measured, **medians}

    def chance(self) -> dict[str, float]:
        return {f"{name}_{k}": share for name, one in self.recalls().items() for k, share in one.chance.items()}

    def rows(self) -> list[tuple[str, str]]:
        """For a table: both directions, each beside chance."""
        told: list[tuple[str, str]] = []
        for name, one in zip(("captions of a picture", "pictures of a caption"), self.recalls().values(), strict=True):
            at, chance = ("  ".join(f"{shares[k]:6.2%}" for k in TOP) for shares in (one.at, one.chance))
            told.append((name, f"{at}  (chance {' '.join(chance.split())}), median rank {one.median:g}"))
        return told

    def loss(self, criterion: Contrast, scale: Float[Tensor, ""], bias: Float[Tensor, ""]) -> float:
        """Of all pictures with their first captions as one batch."""
        pair = Pair(self.images, self.captions[self.first], scale, bias)
        return criterion(pair, pair, self.concepts, self.concepts).item() / len(self.images)


def found(
    source: Captioned,
    indices: Sequence[int],
    images: Float[Tensor, "N E"],
    texts: Sequence[str],
    captions: Float[Tensor, "M E"],
) -> ValidationPairs:
    """Of pictures that could be read, and captions of which some may be nobody's: those are left out."""
    own = different(source, indices)
    known = {normalise_caption(text): row for row, text in enumerate(texts)}
    places = {normalise_caption(text): row for row, text in enumerate(own)}
    named = [[places[normalise_caption(text)] for text in source.captions[index]] for index in indices]
    pairs = [(row, place) for row, own_places in enumerate(named) for place in dict.fromkeys(own_places)]
    device = images.device
    return ValidationPairs(
        [*indices],
        images,
        own,
        captions[torch.tensor([known[normalise_caption(text)] for text in own], device=captions.device)].to(device),
        torch.tensor(pairs, device=device),
        torch.tensor([own_places[0] for own_places in named], device=device),
        torch.tensor([source.concepts[index] for index in indices], device=device),
    )


def different(source: Captioned, samples: Sequence[int]) -> tuple[str, ...]:
    """The captions of these pictures, equal ones once (see `normalise_caption`), in the order in which they come."""
    return tuple(by_spelling(text for sample in samples for text in source.captions[sample]).values())


def encode_texts_by_rank(model: CLIP, tokenizer: Tokenizer, texts: Sequence[str]) -> Float[Tensor, "M E"]:
    """Every rank encodes its share of the texts, and has all of them."""
    rank, world = place()
    parts = gathered([encode_rows(model, tokenizer, tokenizer.rows(texts[rank::world])[0]).cpu()])
    features = parts[0].new_empty(len(texts), parts[0].shape[1])
    for start, part in enumerate(parts):
        features[start::world] = part
    return features


@torch.no_grad()
def familiar(model: CLIP, data: Pairs, most: int, device: torch.device) -> ValidationPairs:
    """Pictures of the training, at most so many, varied under seeds that no epoch has."""
    indices: list[int] = []
    images: list[Tensor] = []
    samples = draw_samples(data.training, most)
    for start in range(0, len(samples), data.batch):
        batch = data.training_pictures[[Pick(ANEW, sample) for sample in samples[start : start + data.batch]]]
        indices += batch.indices.tolist()
        images.append(model.encode_image(batch.images.to(device)))
    texts = different(data.captioned, indices)
    captions = encode_rows(model, data.tokenizer, data.tokenizer.rows(texts)[0])
    return found(data.captioned, indices, torch.cat(images), texts, captions)


def retrievals(held_out: ValidationPairs, source: Captioned, path: Path) -> None:
    """A row for some captions: a picture that one belongs to, and the first pictures that it finds."""
    tiles: list[Tile] = []
    step = max(1, len(held_out.indices) // SHOWN)
    for row in range(0, len(held_out.indices), step)[:SHOWN]:
        caption = int(held_out.first[row])
        scores = held_out.images @ held_out.captions[caption]
        nearest = scores.argsort(descending=True, stable=True)[:FIRST].tolist()
        own = {int(image) for image, text in held_out.pairs.tolist() if text == caption}
        picture = source.pictures.picture(held_out.indices[row])
        tiles.append(Tile(cast(Image.Image, picture), (held_out.texts[caption], "finds:")))
        for rank, image in enumerate(nearest, 1):
            index = held_out.indices[image]
            mark = "right" if image in own else source.captions[index][0]
            tiles.append(Tile(source.pictures.picture(index), (f"{rank}. {scores[image]:.2f}", mark)))
        blank = Image.new("RGB", picture.size, "white")
        tiles += [Tile(blank, ())] * (FIRST - len(nearest))
    contact_sheet(tiles, path, 1 + FIRST)
