import contextlib
import random
import shutil
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.data.images import Images
from vitkit.data.order import Balanced, Pick, TrainingOrder, ValidationOrder
from vitkit.data.pictures import Augmentation, ImageReading, Pictures
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.data.sources.open import open_source
from vitkit.support.errors import format_count


def Grey(
    *sources: str,
    size: tuple[int, int],
    mean: tuple[float, ...] = (0.5,),
    crop: float = 1.0,
    augment: Sequence[v2.Transform] = (),
    **options: Any,
) -> Images:
    """Grey images of a size."""
    preprocess = Preprocess(size, mean, (0.5,), crop=crop)
    return Images(*sources, preprocess=preprocess, augment=Augmentation(augment), **options)


SHIFT = v2.RandomAffine([-10, 10], (0.1, 0.1))


class Noise(v2.Transform):
    """Draws from all three global generators."""

    def transform(self, inpt, params):
        shade = 80 * (torch.rand(1).item() + random.random() + np.random.rand())  # noqa: NPY002
        return Image.eval(inpt, lambda value: int((value + shade) / 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three grey classes of 11, 12 and 14 pictures of 6x5 pixels."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name, count in {"cat": 11, "dog": 12, "eel": 14}.items():
        (root / name).mkdir()
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (5, 6), np.uint8)).save(root / name / f"{number:02}.png")
    return str(root)


def test_a_batch_is_normalised_pictures_with_labels_and_indices():
    data = Grey("digits", size=(8, 8), batch=7)
    batch = next(iter(data.train_dataloader()))
    assert (batch.images.shape, batch.images.dtype) == ((7, 1, 8, 8), torch.float32)
    assert batch.labels.tolist() == [data.source.labels[index] for index in batch.indices]
    assert_close(batch.images[3], data.preprocess(data.source.read_image(int(batch.indices[3]))))
    assert (data.num_classes, data.class_names, data.size, data.channels) == (10, tuple("0123456789"), (8, 8), 1)


def test_training_and_validation_share_no_picture():
    data = Grey("digits", size=(8, 8), fold=3)
    training, validation = (
        torch.cat([batch.indices for batch in loader]).tolist()
        for loader in (data.train_dataloader(), data.val_dataloader())
    )
    assert sorted(training + validation) == list(range(1797))


@pytest.mark.parametrize("augment", [(SHIFT,), (Noise(),), (SHIFT, Noise())])
def test_workers_change_nothing(augment, folder):
    loaders = [
        Grey(folder, size=(6, 6), batch=8, augment=augment, workers=workers).train_dataloader() for workers in (0, 2)
    ]
    for one, other in zip(*loaders, strict=True):
        assert_close(one, other, rtol=0, atol=0)


def test_augmentation_depends_on_epoch_and_seed(folder):
    def first(seed, epoch):
        pictures = Grey(folder, size=(5, 6), augment=(Noise(),), seed=seed).train_dataloader().dataset
        return pictures[[Pick(epoch, 0)]].images

    variants = [first(0, 0), first(0, 1), first(1, 0)]
    assert_close(variants[0], first(0, 0), rtol=0, atol=0)
    assert all(not torch.equal(one, other) for one, other in combinations(variants, 2))


def test_loading_preserves_global_generators(folder):
    # Python's own generator cannot be watched here: the type checker of the tests draws from it.
    def draw(between):
        torch.manual_seed(5)
        np.random.seed(5)  # noqa: NPY002
        for loader in between:
            list(loader)
        return torch.rand(3).tolist(), np.random.rand(3).tolist()  # noqa: NPY002

    data = Grey(folder, size=(5, 6), augment=(Noise(),))
    assert draw([data.train_dataloader(), data.val_dataloader()]) == draw([])


def test_augmented_image_of_model_size_is_not_cropped_again(folder):
    data = Grey(folder, size=(4, 4), crop=0.5, augment=(v2.Resize((4, 4)),))
    batch = next(iter(data.train_dataloader()))
    expected = v2.Resize((4, 4))(data.source.read_image(int(batch.indices[0])))
    assert_close(batch.images[:1], data.preprocess.normalise(data.preprocess.stack_pixels([expected])))


def test_image_augmentation_must_return_images(folder):
    with pytest.raises(ValueError, match="augment.images must yield pictures, got Image;"):
        next(iter(Grey(folder, size=(4, 4), augment=(v2.ToImage(),)).train_dataloader()))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_picture_is_one_line_that_names_it(workers, folder, tmp_path):
    data = Grey(shutil.copytree(folder, str(tmp_path / "copy")), size=(5, 6), workers=workers)
    path = data.source.get_name(data.training[4])
    with open(path, "wb") as file:
        file.write(b"not a picture")
    with pytest.raises(PictureError) as error:
        list(data.train_dataloader())
    assert str(error.value).startswith(f"picture must be readable, got picture={path} (UnidentifiedImageError")
    assert str(error.value).endswith("; or leave such pictures out: reading.on_error=skip")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": "digist"}, "did you mean digits?"),
        ({"mean": (0.5, 0.5)}, "mean must hold 1 number (grey) or 3 (RGB)"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"fold": 5}, "got folds=5, fold=5"),
    ],
)
def test_a_wrong_setting_fails_before_training(change: dict[str, Any], message):
    source, options = change.get("train", "digits"), {key: value for key, value in change.items() if key != "train"}
    with pytest.raises(ValueError) as error:
        Grey(source, size=(8, 8), **options)
    assert message in str(error.value)


def test_a_validation_source_has_no_other_classes(folder):
    with pytest.raises(ValueError, match=r"^val must have no classes but those of train \(cat, dog, eel\), got 0, 1"):
        Grey(folder, "digits", size=(8, 8))
    data = Grey(folder, folder, size=(5, 6))
    for loader in (data.train_dataloader(), data.val_dataloader()):
        assert sum(len(batch.labels) for batch in loader) == 37


def test_a_validation_source_may_lack_classes(folder, tmp_path):
    shutil.copytree(f"{folder}/dog", tmp_path / "dog")
    (tmp_path / "eel").mkdir()
    data = Grey(folder, str(tmp_path), size=(5, 6))
    assert {int(label) for batch in data.val_dataloader() for label in batch.labels} == {1}
    assert data.omissions.format(0) == [
        "left out: 2 classes trained on but not validated, as no picture of them is held out, such as cat"
    ]
    (tmp_path / "table.csv").write_text("file_name,label\ndog/00.png,dog\n")
    assert Grey(folder, str(tmp_path / "table.csv"), size=(5, 6)).held_out.labels == [1]
    with pytest.raises(ValueError, match=r"every class folder must hold a picture .* got none in \['eel'\]"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("fold", [0, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_unlabelled_pictures_too_few_to_hold_out_are_validated(count, fold, folder, tmp_path):
    for number in range(count):
        shutil.copy(f"{folder}/cat/{number:02}.png", tmp_path)
    data = Grey(str(tmp_path), size=(5, 6), unlabelled=True, fold=fold)
    assert data.training == data.validation == list(range(count)) and len(data.find_duplicates()) == count
    (line,) = data.omissions.format(0)
    assert line.startswith(f"left out: {format_count(count, 'held-out pictures')}, as there are too few: ")


def test_augmentations_are_class_paths_in_yaml():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Images, "data")
    transform = "{class_path: torchvision.transforms.v2.RandomAffine, init_args: {degrees: 10, translate: [0.1, 0.1]}}"
    arguments = [
        "--data.train=digits",
        "--data.preprocess.size=[8,8]",
        "--data.preprocess.mean=[0.5]",
        "--data.preprocess.std=[0.5]",
    ]
    config = parser.parse_args([*arguments, f"--data.augment.images=[{transform}]"])
    (affine,) = parser.instantiate(config).data.training_pictures.augment.images
    assert isinstance(affine, v2.RandomAffine)
    assert (affine.degrees, affine.translate) == ([-10.0, 10.0], [0.1, 0.1])


class Recorder(LightningModule):
    """Writes down what it is trained on; one weight, so that there is something to step."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch, batch_index):
        self.seen.append((self.current_epoch, batch.indices.tolist(), batch.images.sum().item()))
        return self.weight * batch.images.mean()

    def validation_step(self, batch, batch_index):
        self.log("shade", batch.images.mean(), batch_size=len(batch.labels))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kill(Exception):
    pass


class SaveAndKill(Callback):
    """Writes a checkpoint in one of the Trainer's hooks after so many batches, trains one more and dies."""

    def __init__(self, path, hook, batches):
        self.path = path
        self.batches = batches
        setattr(self, hook, self.save)

    def save(self, trainer, *_):
        if trainer.fit_loop.total_batch_idx + 1 == self.batches:
            trainer.save_checkpoint(self.path)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx > self.batches:
            raise Kill


def fit(folder, workers, *, checkpoint=None, callbacks=(), **options):
    data = Grey(folder, size=(5, 6), batch=8, augment=(Noise(),), workers=workers, **options)
    model = Recorder()
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with contextlib.suppress(Kill):
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    return model.seen


@pytest.fixture(scope="module", params=[0, 2])
def run(request, folder):
    """A number of workers, and what an uninterrupted run sees with it: three epochs of four steps."""
    return request.param, fit(folder, request.param)


@pytest.mark.parametrize(
    ("hook", "batches"),
    [
        ("on_train_batch_end", 2),
        ("on_train_batch_end", 5),
        ("on_train_batch_end", 8),
        ("on_validation_end", 4),
        ("on_train_epoch_end", 8),
    ],
)
def test_resumed_run_reads_the_same_batches(hook, batches, run, folder, tmp_path):
    workers, whole = run
    assert len(whole) == 12
    checkpoint = tmp_path / "last.ckpt"
    killed = fit(folder, workers, callbacks=[SaveAndKill(checkpoint, hook, batches)])
    assert killed == whole[: batches + 1]
    assert fit(folder, workers, checkpoint=checkpoint) == whole[batches:]


@pytest.mark.parametrize("change", [{"seed": 2}, {"fold": 1}])
def test_a_run_does_not_go_on_in_mid_epoch_with_other_data(change, folder, tmp_path):
    checkpoint = tmp_path / "last.ckpt"
    fit(folder, 0, callbacks=[SaveAndKill(checkpoint, "on_train_batch_end", 2)])
    with pytest.raises(ValueError, match="a run must go on with the same data and batch, got"):
        fit(folder, 0, checkpoint=checkpoint, **change)


def test_label_sets_of_one_side_apply_to_both(folder, tmp_path):
    for name, labels in {"train": ["a", "a|c", "b"], "val": ["c", "a", "c"]}.items():
        for number, label in enumerate(labels):
            Image.new("L", (4, 4), 50 * number).save(tmp_path / f"{number}.png")
            with (tmp_path / f"{name}.csv").open("a") as file:
                file.write(("" if number else "file_name,label\n") + f"{number}.png,{label}\n")
    data = Grey(str(tmp_path / "train.csv"), str(tmp_path / "val.csv"), size=(4, 4))
    assert data.class_names == data.held_out.class_names == ("a", "b", "c")
    assert next(iter(data.val_dataloader())).labels.int().tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match=r"no classes but those of train \(a, c\), got b$"):
        Grey(str(tmp_path / "val.csv"), str(tmp_path / "train.csv"), size=(4, 4))


class Invert(v2.Transform):
    def transform(self, inpt, params):
        return -inpt


def assert_same(one, other):
    assert_close(one[:3], other[:3], rtol=0, atol=0)
    assert tuple(one.skipped) == tuple(other.skipped)


def test_every_argument_takes_effect(tmp_path):
    """Against an order and a reader made by hand."""
    columns, rows = ("path", "kind"), []
    for number in range(30):
        kind = ("cat", "dog", "eel")[number % 7 % 3]
        pixels = np.random.default_rng(number).integers(0, 256, (90, 70, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg", quality=95)
        rows.append(f"{number}.jpg,{kind}")
    for name in ("train", "val"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,kind", *rows]))
    settings = {"interpolation": "bilinear", "crop": 0.5}
    preprocess = Preprocess((8, 6), (0.3,), (0.2,), **settings)
    data = Images(
        str(tmp_path / "train.csv"),
        str(tmp_path / "val.csv"),
        reading=ImageReading(columns=columns, reduce=1.0, on_error="skip"),
        augment=Augmentation([SHIFT], tensors=[Invert()]),
        batch=8,
        draw=Balanced(),
        workers=1,
        seed=5,
        preprocess=preprocess,
    )
    (tmp_path / "3.jpg").write_bytes(b"")
    source = open_source(str(tmp_path / "train.csv"), columns=columns)
    reading = ImageReading(reduce=1.0, on_error="skip")
    pictures = Pictures(source, preprocess, augment=Augmentation([SHIFT], tensors=[Invert()]), seed=5, reading=reading)
    order = TrainingOrder(range(30), 8, 5, labels=source.labels, draw=Balanced())
    assert data.train_dataloader().num_workers == data.val_dataloader().num_workers == 1
    for batch, picks in zip(data.train_dataloader(), order, strict=True):
        assert_same(batch, pictures[picks])
    plain = Pictures(source, preprocess, reading=reading)
    for batch, picks in zip(data.val_dataloader(), ValidationOrder(range(30), 8), strict=True):
        assert_same(batch, plain[picks])
    assert not torch.equal(plain[[Pick(0, 1)]].images, Pictures(source, preprocess)[[Pick(0, 1)]].images)  # reduced
