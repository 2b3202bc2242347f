"""The DataModule of images and captions. Letters: B batch, C channels, U different texts, T ids."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils.data import Dataset

from vitkit.data.annotations.captions import CAPTIONS, Captioned
from vitkit.data.image_data import ImageData
from vitkit.data.order import Draw, Labels, Pick, derive_seed
from vitkit.data.pictures import Augmentation, ImageReading, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.data.tokenizer import Tokenizer


class PairBatch(NamedTuple):
    """Images, each with one of its captions; equal texts are there once.

    Args:
        ids: of the different texts. rows: the text of each image.
        positives: a number for each image; images with equal numbers are positives of each other. See `Captioned`.
        indices, skipped, digests: as in Batch.
        cut: the number of texts that did not fit and lost their ends.
    """

    images: Float[Tensor, "B C h w"]
    ids: Int64[Tensor, "U T"]
    rows: Int64[Tensor, " B"]
    positives: Int64[Tensor, " B"]
    indices: Int64[Tensor, " B"]
    skipped: tuple[str, ...] = ()
    cut: int = 0
    digests: Mapping[int, int] = {}


class CaptionedPictures(Dataset[PairBatch]):
    """Augmented images, each with one of its captions in one of the templates, drawn under seeds of their own."""

    def __init__(
        self, pictures: Pictures, source: Captioned, tokenizer: Tokenizer, templates: Sequence[str] = ("{}",)
    ) -> None:
        self.pictures, self.source, self.tokenizer, self.templates = pictures, source, tokenizer, templates

    def __getitem__(self, picks: Sequence[Pick]) -> PairBatch:
        batch = self.pictures[picks]
        readable = set(batch.indices.tolist())
        picks = [pick for pick in picks if pick.sample in readable]
        texts = [self.draw_caption(pick) for pick in picks]
        places = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        ids, cut = self.tokenizer.encode_and_pad(list(places))
        if cut and self.tokenizer.overflow == "error":
            text = list(places)[cut[0]]
            picture = self.source.pictures.get_name(picks[texts.index(text)].sample)
            raise ValueError(
                f"texts must fit into {self.tokenizer.context} ids, got {text!r:.80} of {picture}; "
                "shorten it, or take overflow=warn"
            )
        positives = torch.tensor([self.source.positives[index] for index in batch.indices.tolist()], dtype=torch.int64)
        rows = torch.tensor([places[text] for text in texts], dtype=torch.int64)
        return PairBatch(batch.images, ids, rows, positives, batch.indices, batch.skipped, len(cut), batch.digests)

    def draw_caption(self, pick: Pick) -> str:
        """Return one of an image's captions in one of the templates."""
        captions = self.source.captions[pick.sample]
        caption, template = (
            choices[derive_seed(self.pictures.seed, *pick, use) % len(choices)]
            for use, choices in ((2, captions), (3, self.templates))
        )
        return template.replace("{}", caption)


class Pairs(ImageData):
    """Images with captions, split into training and validation.

    Args:
        train, val: the sources with captions, see `open_source`. Without val, fold `fold` of `folds` is held out, so
            that no caption and no group of a source is on both sides.
        preprocess, augment, reading: see Images.
        tokenizer: of the captions. A vocabulary that is a number is trained on the training captions alone.
        batch: pairs a step and rank.
        draw: the choice and order of an epoch's pairs: Shuffled, Distinct, Repeated.
        seed: of order, augmentation and choice of captions, not of the split.
        templates: with {} for the caption, such as "a picture of a {}"; each training caption is put into one of them.
            Trained on names alone, a tower has never seen the other words of a sentence.

    Raises: ValueError, one line, as soon as it is made.
    """

    fields = PairBatch._fields

    def __init__(
        self,
        train: str,
        val: str | None = None,
        *,
        preprocess: Preprocess,
        tokenizer: Tokenizer,
        batch: int = 64,
        folds: int = 5,
        fold: int = 0,
        augment: Augmentation = Augmentation(),
        draw: Draw | None = None,
        workers: int = 0,
        seed: int = 0,
        reading: ImageReading = ImageReading(),
        templates: Sequence[str] = ("{}",),
    ) -> None:
        if not templates or any(template.count("{}") != 1 for template in templates):
            raise ValueError(f"templates must hold {{}} for the caption, once each, got templates={list(templates)}")
        self.captioned = self.held_out_captioned = open_source(
            train, CAPTIONS, reading.columns, reading.exclude, reading.skip_absent
        )
        if val is None:
            training, validation = CAPTIONS.split(self.captioned, folds, fold)
        else:
            self.held_out_captioned = open_source(val, CAPTIONS, reading.columns, reading.exclude, reading.skip_absent)
            training, validation = (
                list(range(len(side.captions))) for side in (self.captioned, self.held_out_captioned)
            )
        self._tokenizer = tokenizer.train(_iterate_texts(self.captioned, training, templates))
        pictures = self.captioned.pictures
        self.training_pictures = Pictures(pictures, preprocess, augment=augment, seed=seed, reading=reading)
        super().__init__(
            preprocess,
            pictures,
            self.held_out_captioned.pictures,
            training,
            validation,
            training_samples=CaptionedPictures(self.training_pictures, self.captioned, self._tokenizer, templates),
            reading=reading,
            augmented=[self.training_pictures],
            batch=batch,
            fold=fold,
            draw=draw,
            workers=workers,
            seed=seed,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def groups(self) -> Sequence[int]:
        return self.captioned.groups

    @property
    def training_labels(self) -> Labels:
        return [self.captioned.positives[sample] for sample in self.training]


def _iterate_texts(source: Captioned, samples: Sequence[int], templates: Sequence[str]) -> Iterator[str]:
    """Yield the captions of samples, each in one of the templates, which take turns."""
    captions = (caption for sample in samples for caption in source.captions[sample])
    for caption, template in zip(captions, cycle(templates), strict=False):
        yield template.replace("{}", caption)
