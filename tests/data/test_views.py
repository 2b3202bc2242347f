import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.data.images import Images
from vitkit.data.order import Balanced, Draw, Pick, Repeated, TrainingOrder
from vitkit.data.pictures import Augmentation, Batch, ImageReading
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Files
from vitkit.data.views import View, ViewBatch, Views
from vitkit.models import MAE
from vitkit.tasks.classify import Classify
from vitkit.tasks.reconstruction import Reconstruct

exact = partial(assert_close, rtol=0, atol=0)
GREY = Preprocess((6, 8), (0.5,), (0.25,), interpolation="bilinear", crop=0.9)


class Noise(v2.Transform):
    """Draws from all three global generators."""

    def transform(self, inpt: Image.Image, params: dict[str, Any]) -> Image.Image:
        shade = 80 * (torch.rand(1).item() + random.random() + np.random.rand())  # noqa: NPY002
        return Image.eval(inpt, lambda value: int((value + shade) / 2))


class Scale(v2.Transform):
    """Multiplies numbers by one that is drawn."""

    def transform(self, inpt: Tensor, params: dict[str, Any]) -> Tensor:
        return inpt * torch.rand(())


WIDE = View((6, 8), Augmentation([Noise()], [Scale()]), count=2)
SMALL = View((4, 4), Augmentation([v2.RandomCrop(4), Noise()]), count=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three grey classes of 7 images of 6 x 9 pixels."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "eel"):
        (root / name).mkdir()
        for number in range(7):
            Image.fromarray(rng.integers(0, 256, (6, 9), np.uint8)).save(root / name / f"{number}.png")
    return str(root)


def data(folder: str, *views: View, **options: Any) -> Views:
    return Views(folder, **{"preprocess": GREY, "views": views or (WIDE, SMALL), "batch": 4, **options})


def batches(views: Views) -> list[ViewBatch]:
    return [*views.train_dataloader()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("draw", [None, Repeated(2)])
def test_first_view_equals_images(workers: int, draw: Draw | None, folder: str) -> None:
    preprocess = Preprocess((6, 8), (0.5,), (0.25,), "bilinear", 0.9)
    images = Images(folder, preprocess=preprocess, augment=WIDE.augment, batch=4, draw=draw, workers=workers, seed=3)
    for views in ((View((6, 8), WIDE.augment),), (WIDE, SMALL)):
        several = data(folder, *views, draw=draw, workers=workers, seed=3)
        for batch, expected in zip(several.train_dataloader(), images.train_dataloader(), strict=True):
            assert len(batch.views) == sum(view.count for view in views)
            exact(batch.views[0], expected.images)
            exact(batch[1:3], expected[1:3])
        for batch, expected in zip(several.val_dataloader(), images.val_dataloader(), strict=True):
            assert isinstance(batch, Batch)
            exact(batch[:3], expected[:3])
    assert (several.size, several.channels, several.class_names) == (images.size, images.channels, images.class_names)


def test_views_have_sizes_and_seeds_of_their_own(folder: str) -> None:
    batch = batches(data(folder))[0]
    assert [tuple(view.shape) for view in batch.views] == [(4, 1, 6, 8)] * 2 + [(4, 1, 4, 4)] * 3
    assert not torch.equal(batch.views[0], batch.views[1])
    assert len({view.numpy().tobytes() for view in batch.views[2:]}) == 3


def test_workers_change_no_view_and_every_epoch_has_its_own(folder: str) -> None:
    def read_views(workers: int, epoch: int) -> list[ViewBatch]:
        loader = data(folder, workers=workers).train_dataloader()
        cast(TrainingOrder, loader.sampler).set_epoch(epoch)
        return [*loader]

    alone = read_views(0, 1)
    exact([batch[:3] for batch in read_views(2, 1)], [batch[:3] for batch in alone])
    pick = Pick(0, int(alone[0].indices[0]))
    other = data(folder).training_samples[[pick]]
    assert all(not torch.equal(view[0], before[0]) for view, before in zip(other.views, alone[0].views, strict=True))


def test_ranks_divide_the_views_of_one_process(folder: str) -> None:
    views, samples = data(folder), range(21)
    whole = views.training_samples[next(iter(TrainingOrder(samples, 8, 0)))]
    orders = [TrainingOrder(samples, 4, 0, rank=rank, world=2) for rank in (0, 1)]
    shares = [views.training_samples[next(iter(order))] for order in orders]
    for place, view in enumerate(whole.views):
        exact(torch.cat([share.views[place] for share in shares]), view)


def test_a_view_does_not_depend_on_the_settings_of_others(folder: str) -> None:
    picks = [Pick(2, sample) for sample in (5, 1)]
    before = data(folder).training_samples[picks]
    after = data(folder, View((5, 5), count=2), SMALL, View((2, 2))).training_samples[picks]
    exact(after.views[2:5], before.views[2:])


def test_an_image_is_read_once_for_all_views(folder: str) -> None:
    reads: Counter[int] = Counter()

    class Watched(Files):
        def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
            reads[index] += 1
            return super().read_image(index, at_least)

    views = data(folder)
    source = cast(Files, views.source)
    for view in views.training_views:
        view.source = Watched(source.files, source.class_names, source.labels)
    views.training_samples[[Pick(0, sample) for sample in (3, 0, 7)]]
    assert reads == {3: 1, 0: 1, 7: 1}


def test_an_image_that_cannot_be_read_is_in_no_view(folder: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(5)]
    for number, path in enumerate(paths):
        Image.new("L", (9, 6), 50 * number).save(path)
    views = data(str(tmp_path), unlabelled=True, reading=ImageReading(on_error="skip"))
    Path(paths[2]).write_bytes(b"")
    batch = views.training_samples[[Pick(0, sample) for sample in range(5)]]
    assert batch.indices.tolist() == [0, 1, 3, 4] and batch.labels.tolist() == [-1] * 4
    assert [len(view) for view in batch.views] == [4] * 5
    assert len(batch.skipped) == 1 and paths[2] in batch.skipped[0]
    nothing = views.training_samples[[Pick(0, 2)]]
    assert [tuple(view.shape) for view in nothing.views] == [(0, 1, 6, 8)] * 2 + [(0, 1, 4, 4)] * 3


def test_without_augmentation_views_of_a_size_are_equal(folder: str) -> None:
    views = data(folder, WIDE)
    views.stop_augmentation()
    one, two = batches(views)[0].views
    exact(one, two)


def test_views_preserve_global_generators(folder: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches(data(folder))
    exact(torch.rand(3), expected)


class Recorder(LightningModule):
    """Writes down what it is trained on; one weight, so that there is something to step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, list[int], list[float]]] = []

    def training_step(self, batch: ViewBatch, batch_idx: int) -> Tensor:
        self.seen.append((self.current_epoch, batch.indices.tolist(), [view.sum().item() for view in batch.views]))
        return self.weight * batch.views[0].mean()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("shade", batch.images.mean(), batch_size=len(batch.labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Kill(Exception):
    pass


class SaveAndKill(Callback):
    """Writes a checkpoint after six batches and dies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 6:
            trainer.save_checkpoint(self.path)
            raise Kill


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_run_reads_the_same_views(workers: int, folder: str, tmp_path: Path) -> None:
    """Two epochs of four steps."""

    def fit(callbacks: Sequence[Callback] = (), checkpoint: Path | None = None) -> list[Any]:
        model = Recorder()
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        trainer = Trainer(max_epochs=2, accelerator="cpu", callbacks=[*callbacks], **quiet)
        with contextlib.suppress(Kill):
            views = data(folder, workers=workers)
            trainer.fit(model, datamodule=views, ckpt_path=checkpoint, weights_only=True)
        return model.seen

    whole = fit()
    assert len(whole) == 8
    assert fit([SaveAndKill(tmp_path / "last.ckpt")]) == whole[:6]
    assert fit(checkpoint=tmp_path / "last.ckpt") == whole[6:]


def test_views_are_class_paths_in_yaml(folder: str, tmp_path: Path) -> None:
    from vitkit.fit.run_config import CLI

    crop = {"class_path": "torchvision.transforms.v2.RandomResizedCrop", "init_args": {"size": [4, 4]}}
    data = {
        "train": folder,
        "preprocess": {"size": [8, 8], "mean": [0.5], "std": [0.25]},
        "views": [{"size": [8, 8], "count": 2}, {"size": [4, 4], "augment": {"images": [crop]}, "count": 3}],
    }
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    vit = {"class_path": "vitkit.models.ViT", "init_args": {"patch_size": [4, 4], "encoder": encoder}}
    content = {
        "model": {"class_path": "vitkit.tasks.classify.Classify", "init_args": {"lr": 0.1, "model": vit}},
        "data": {"class_path": "vitkit.data.views.Views", "init_args": data},
    }
    (tmp_path / "views.yaml").write_text(yaml.safe_dump(content))
    cli = CLI([f"--config={tmp_path / 'views.yaml'}", "--data.batch=5", "--data.preprocess.crop=0.5"])
    views = cast(Any, cli.datamodule)
    assert isinstance(views, Views) and views.preprocess == Preprocess((8, 8), (0.5,), (0.25,), crop=0.5)
    assert isinstance(views.training_views[4].augment.images[0], v2.RandomResizedCrop)
    assert [view.shape[0:1] + view.shape[2:] for view in batches(views)[0].views] == [(5, 8, 8)] * 2 + [(5, 4, 4)] * 3
    assert cli.portable["init_args"].items() >= {"outputs": 3, "image_size": (8, 8), "channels": 1}.items()


def test_views_are_refused_by_tasks_of_one_image(folder: str, mae: MAE, model: nn.Module) -> None:
    for task in (Classify(model, lr=1.0), Reconstruct(mae, lr=1.0)):
        message = f"^data must give one image of each sample for {type(task).__name__}, got Views$"
        with pytest.raises(ValueError, match=message):
            task.bind(data(folder))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"views": ()}, "views must hold a View, got none"),
        ({"draw": Balanced(), "unlabelled": True}, "draw must not be Balanced where data.unlabelled"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
)
def test_a_wrong_setting_fails_before_training(options: dict[str, Any], message: str, folder: str) -> None:
    with pytest.raises(ValueError, match=message):
        data(folder, **options)
    with pytest.raises(ValueError, match="count must be at least 1, got count=0"):
        View((4, 4), count=0)
