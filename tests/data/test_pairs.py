import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from torch import Tensor
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.data.duplicates import find_shared_samples
from vitkit.data.order import Distinct
from vitkit.data.pairs import PairBatch, Pairs
from vitkit.data.pictures import Augmentation, Batch, ImageReading, Loader
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.data.vocabularies.byte_pair_training import train_byte_pairs

Make = Callable[..., str]
PREPROCESS = Preprocess((5, 6), (0.5,), (0.5,))


def Few(*sources: str, tokenizer: Tokenizer | None = None, **options: Any) -> Pairs:
    """Small grey images with captions."""
    return Pairs(*sources, preprocess=PREPROCESS, tokenizer=tokenizer or Tokenizer(), **options)


CAPTIONS = ["a cat", "two dogs", "an eel", "the ant and the bee", "a fox"]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make a folder of grey images of 6x5 pixels with the captions of each."""

    def make(captions: Sequence[Sequence[str]], seed: int = 0) -> str:
        root = tmp_path_factory.mktemp("pairs")
        rng = np.random.default_rng(seed)
        for number, texts in enumerate(captions):
            Image.fromarray(rng.integers(0, 256, (5, 6), np.uint8)).save(root / f"{number:02}.png")
            (root / f"{number:02}.txt").write_text("\n".join(texts))
        return str(root)

    return make


@pytest.fixture(scope="module")
def folder(make: Make) -> str:
    """20 pictures with two captions each, no two of which are equal."""
    return make(
        [(f"{caption} {number}", f"number {number} is {caption}") for number in range(4) for caption in CAPTIONS]
    )


def texts(data: Pairs, batch: PairBatch) -> list[str]:
    """Return the caption of each image of a batch, by its ids."""
    captions = []
    for index, row in zip(batch.indices.tolist(), batch.rows.tolist(), strict=True):
        ids = batch.ids[row][: int(batch.ids[row].argmax()) + 1].tolist()
        matches = [text for text in data.captioned.captions[index] if data.tokenizer(text)[0].tolist() == ids]
        assert len(matches) == 1
        captions += matches
    return captions


def test_batch_pairs_images_with_one_of_their_captions(folder: str) -> None:
    data = Few(folder, batch=7)
    batch = next(iter(data.train_dataloader()))
    assert (batch.images.shape, batch.ids.shape[0], batch.rows.tolist()) == ((7, 1, 5, 6), 7, list(range(7)))
    picture = data.source.read_image(int(batch.indices[3]))
    assert_close(batch.images[3], data.preprocess(picture))
    assert len(texts(data, batch)) == 7
    assert batch.positives.tolist() == [data.captioned.positives[index] for index in batch.indices.tolist()]
    assert batch.ids.shape[1] == max(int((row != 0).sum()) for row in batch.ids)
    assert (tuple(batch.skipped), batch.cut) == ((), 0)


def test_equal_texts_share_one_row(make: Make) -> None:
    data = Few(make([("a cat",), ("two dogs",)] * 3 + [("an eel",)]), make([("x",)]), batch=7)
    batch = next(iter(data.train_dataloader()))
    assert batch.ids.shape[0] == 3 and sorted(batch.rows.tolist()) != list(range(7))
    assert batch.ids[batch.rows].tolist() == data.tokenizer(texts(data, batch)).tolist()
    assert batch.positives.tolist() == [[0, 1, 0, 1, 0, 1, 2][index] for index in batch.indices.tolist()]


def test_caption_draw_depends_on_epoch_and_seed(folder: str) -> None:
    def draw(seed: int, epoch: int, workers: int = 0) -> dict[int, str]:
        data = Few(folder, batch=8, seed=seed, workers=workers)
        loader = data.train_dataloader()
        loader.sampler.set_epoch(epoch)
        return {
            index: text
            for batch in loader
            for index, text in zip(batch.indices.tolist(), texts(data, batch), strict=True)
        }

    captions = draw(0, 0)
    assert len(captions) == 16 and captions == draw(0, 0) == draw(0, 0, workers=2)
    for others in (draw(0, 1), draw(1, 0)):
        assert others.keys() == captions.keys()
        assert 0 < sum(captions[index] != others[index] for index in captions) < 16
    counts = Counter(text.startswith("number") for epoch in range(30) for text in draw(0, epoch).values())
    assert 0.4 < counts[True] / counts.total() < 0.6


def test_templates_apply_to_training_captions_only(make: Make) -> None:
    templates = ("{}", "a picture of {}")
    data = Few(make([(f"cat {number}",) for number in range(40)]), templates=templates, batch=32)
    batch = next(iter(data.train_dataloader()))
    template_of = {
        tuple(data.tokenizer(template.replace("{}", caption))[0].tolist()): template
        for (caption,) in data.captioned.captions
        for template in templates
    }
    counts = Counter(template_of[tuple(ids[: int(ids.argmax()) + 1].tolist())] for ids in batch.ids)
    assert min(counts[template] for template in templates) > 5
    assert data.held_out_captioned.captions[0] == ("cat 0",)


def test_workers_change_nothing(folder: str) -> None:
    rotate = v2.RandomAffine([-90, 90])
    loaders = [
        Few(folder, augment=Augmentation([rotate]), batch=6, workers=workers).train_dataloader() for workers in (0, 2)
    ]
    for one, other in zip(*loaders, strict=True):
        assert_close(one[:5], other[:5], rtol=0, atol=0)


def test_split_shares_no_caption(make: Make) -> None:
    root = make([(f"{CAPTIONS[number % 4]} {number // 8}", f"own {number}") for number in range(24)])
    held = []
    for fold in range(3):
        data = Few(root, folds=3, fold=fold)
        sides = [{text for sample in side for text in data.captioned.captions[sample]}
                 for side in (data.training, data.validation)]  # fmt: skip
        assert data.validation and not sides[0] & sides[1]
        assert data.held_out_captioned is data.captioned
        held += data.validation
    assert sorted(held) == list(range(24))


def test_validation_may_be_another_source(folder: str, make: Make) -> None:
    data = Few(folder, make([("a cat 0",), ("x", "y")], seed=1), batch=4)
    assert (len(data.training), data.validation) == (20, [0, 1])
    assert data.held_out_captioned.captions == [("a cat 0",), ("x", "y")]
    (batch,) = data.val_dataloader()
    assert_close(batch.images[1], data.preprocess(data.held_out.read_image(1)))


def test_images_in_training_and_validation_are_found(folder: str) -> None:
    data = Few(folder, folder)
    shared = find_shared_samples(data.source, data.training, data.held_out, data.validation)
    assert shared == [(n, n) for n in range(20)]
    split = Few(folder)
    assert find_shared_samples(split.source, split.training, split.held_out, split.validation) == []


@pytest.mark.parametrize("batch", [3, 4])
def test_images_that_share_a_caption_are_in_different_batches(batch: int, make: Make) -> None:
    captions = [(CAPTIONS[number % 4],) for number in range(16)]
    data = Few(make(captions), make([("x",)]), batch=batch, draw=Distinct())
    batches = [batch.positives.tolist() for batch in data.train_dataloader()]
    assert sorted(number for numbers in batches for number in numbers) == sorted([0, 1, 2, 3] * 4)
    whole = batches if batch == 4 else batches[:4]
    assert all(len(set(numbers)) == batch for numbers in whole)
    shuffled = Few(make(captions), make([("x",)]), batch=4).train_dataloader()
    assert any(len(set(batch.positives.tolist())) < 4 for batch in shuffled)


LONG = ("one two three four five six",)


def test_texts_that_do_not_fit_are_cut_and_counted(make: Make) -> None:
    root = make([("a cat",), LONG, ("two three four five six seven",), LONG, ("an eel",)])
    for overflow in ("warn", "truncate"):
        (batch,) = Few(root, make([("x",)]), batch=5, tokenizer=Tokenizer(5, overflow=overflow)).train_dataloader()
        assert (batch.cut, batch.ids.shape) == (2, (4, 5))
        assert batch.ids[:, -1].max() == 49407


@pytest.mark.parametrize(("workers", "seed"), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)])  # in other places of a batch
def test_overflow_error_names_text_and_image(workers: int, seed: int, make: Make) -> None:
    root = make([("a cat",), LONG, ("an eel",)])
    data = Few(root, make([("x",)]), tokenizer=Tokenizer(5, overflow="error"), workers=workers, seed=seed)
    with pytest.raises(ValueError) as error:
        list(data.train_dataloader())
    assert (
        str(error.value)
        .strip()
        .splitlines()[-1]
        .endswith(
            f"texts must fit into 5 ids, got 'one two three four five six' of {root}/01.png; "
            "shorten it, or take overflow=warn"
        )
    )
    assert list(Few(root, make([("x",)]), tokenizer=Tokenizer(8, overflow="error")).train_dataloader())


def test_unreadable_image_is_skipped_with_its_caption(make: Make) -> None:
    root = make([("a",), ("b",), ("c",), ("b",)])
    (Path(root) / "01.png").write_bytes(b"")
    data = Few(root, make([("x",)]), reading=ImageReading(on_error="skip"))
    (batch,) = data.train_dataloader()
    assert sorted(batch.indices.tolist()) == [0, 2, 3]
    assert sorted(texts(data, batch)) == ["a", "b", "c"] and len(batch.positives) == 3
    assert len(batch.skipped) == 1 and "01.png" in batch.skipped[0]


def test_rotated_image_is_set_upright(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    for orientation in range(1, 9):
        exif, file = Image.Exif(), BytesIO()
        exif[0x0112] = orientation
        stored = {6: np.rot90(pixels), 8: np.rot90(pixels, 3), 3: np.rot90(pixels, 2), 5: pixels.T,
                  7: np.rot90(pixels, 2).T, 2: pixels[:, ::-1], 4: pixels[::-1]}.get(orientation, pixels)  # fmt: skip
        Image.fromarray(np.ascontiguousarray(stored)).save(file, "PNG", exif=exif)
        (tmp_path / f"{orientation}.png").write_bytes(file.getvalue())
        (tmp_path / f"{orientation}.txt").write_text(f"number {orientation}")
    data = Pairs(str(tmp_path), str(tmp_path), preprocess=Preprocess((6, 8), (0.5,), (0.5,)), tokenizer=Tokenizer())
    expected = Preprocess((6, 8), (0.5,), (0.5,))(Image.fromarray(pixels))
    for loader in (data.train_dataloader(), data.val_dataloader()):
        (batch,) = loader
        assert_close(batch.images, expected.expand(8, 1, 6, 8))


class Recorder(LightningModule):
    """Writes down what it is trained on; one weight, so that there is something to step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Any] = []

    def training_step(self, batch: PairBatch, batch_index: int) -> Tensor:
        self.seen.append((batch.indices.tolist(), batch.ids.tolist(), batch.rows.tolist(), batch.images.sum().item()))
        return self.weight * batch.images.mean()

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        self.log("shade", batch.images.mean(), batch_size=len(batch.labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kill(Exception):
    pass


class SaveAndKill(Callback):
    """After so many batches writes a checkpoint, trains one more and dies."""

    def __init__(self, path: Path, batches: int) -> None:
        self.path, self.batches = path, batches

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.fit_loop.total_batch_idx + 1 == self.batches:
            trainer.save_checkpoint(self.path)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.fit_loop.total_batch_idx > self.batches:
            raise Kill


def fit(folder: str, *callbacks: Callback, checkpoint: Path | None = None) -> list[Any]:
    data = Few(folder, augment=Augmentation([v2.RandomAffine([-90, 90])]), batch=5, draw=Distinct())
    model = Recorder()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(max_epochs=3, accelerator="cpu", callbacks=list(callbacks), **quiet)
    with contextlib.suppress(Kill):
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    return model.seen


@pytest.mark.parametrize("batches", [4, 6])
def test_resumed_run_reads_the_same_batches(batches: int, folder: str, tmp_path: Path) -> None:
    whole = fit(folder)
    assert len(whole) == 3 * 4
    assert fit(folder, SaveAndKill(tmp_path / "last.ckpt", batches)) == whole[: batches + 1]
    assert fit(folder, checkpoint=tmp_path / "last.ckpt") == whole[batches:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": "digist"}, "did you mean digits?"),
        ({"folds": 21}, "captions must differ between at least folds=21 pictures, got 20; give val"),
        ({"fold": 5}, "got folds=5, fold=5"),
        ({"batch": 0}, "batch must be at least 1"),
        (
            {"templates": ["a {}", "{} or {}"]},
            "templates must hold {} for the caption, once each, got templates=['a {}'",
        ),
        ({"templates": []}, "got templates=[]"),
    ],
)
def test_a_wrong_setting_fails_before_training(change: dict[str, Any], message: str, folder: str) -> None:
    with pytest.raises(ValueError) as error:
        Few(**{"train": folder} | change)
    assert message in str(error.value)


def test_vocabulary_is_trained_on_training_captions_only(make: Make) -> None:
    folder = make([(f"number {number} of {caption}",) for number in range(6) for caption in CAPTIONS])
    data = Few(folder, tokenizer=Tokenizer(vocabulary=290), templates=("a sketch of {}",))
    spoken = [f"a sketch of {caption}" for sample in data.training for caption in data.captioned.captions[sample]]
    assert 0 < len(spoken) < 30
    assert data.tokenizer.text == train_byte_pairs(spoken, 290)
    assert (
        data.tokenizer.text
        == Few(folder, tokenizer=Tokenizer(vocabulary=290), templates=("a sketch of {}",)).tokenizer.text
    )
    held_out = [data.captioned.captions[sample][0] for sample in data.validation]
    assert data.tokenizer.text != train_byte_pairs([*spoken, *held_out * 9], 290)
    again = Few(folder, folder, tokenizer=Tokenizer(vocabulary=290), templates=("a sketch of {}",))
    assert again.tokenizer.text != data.tokenizer.text  # all of them train there


def test_a_trained_vocabulary_reads_captions_in_worker_processes(folder: str) -> None:
    def train(workers: int) -> Loader:
        data = Few(folder, tokenizer=Tokenizer(vocabulary=290), batch=5, workers=workers)
        return data.train_dataloader()

    batches = [
        [
            batch.ids.tolist()
            for batch in Few(folder, tokenizer=Tokenizer(vocabulary=290), batch=5, workers=workers).train_dataloader()
        ]
        for workers in (0, 1)
    ]
    assert batches[0] == batches[1]
