"""`vitkit bench --epoch`: whole epochs of `vitkit fit` beside epochs of timm's training loop, on the same images.

Equal: the images, the initial weights, image size, batch, workers, threads, precision, AdamW with its learning rate at
the peak and its weight decay, a random resized crop of 8-100 % and a flip, the mean and deviation of ImageNet. Neither
side has RandAugment, colour jitter, mixing, label smoothing, gradient clipping or averaged weights.

Not equal: vitkit is `vitkit fit` with all that it does in an epoch (a seed for each image, its own crop, which averages
blocks of pixels before it resamples, a check that loss and gradient norm are finite, a schedule, metrics after each
step). timm is the loop of its train.py: create_loader, which normalises a batch in the training process,
create_optimizer_v2, the step, the mean of the loss.

Either side is a process of its own, and waits while the other one has its turn. The first epoch does not count;
validation and checkpoints are not timed.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from safetensors.torch import save_file
from torchvision.datasets import ImageFolder

from vitkit.bench import epoch_runs
from vitkit.bench.epoch_runs import MEAN, SIDES, STD, EpochRun
from vitkit.bench.image_loading import choose
from vitkit.bench.peers import COLUMNS, LEGEND, Row, Settings, divide
from vitkit.bench.timing import alternate
from vitkit.bench.vit_steps import Shape, build_peer, parse_shape
from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source

PATIENCE = 30  # seconds in which a side ends by itself, once nothing more is asked of it
HEADER = f"""
an epoch: `vitkit fit` beside the loop of timm's train.py, each in a process of its own: loader, augmentation, step
equal: images, initial weights, size, batch, workers, threads, precision, AdamW, random resized crop, flip; nothing else
not timed: the first epoch, validation, checkpoints; MB is of the training process, without workers
{LEGEND}
{COLUMNS}"""


def compare(name: str, settings: Settings, *, folder: str, pictures: int | None, workers: int) -> Iterator[Row]:
    """Raises: ValueError for a folder with less than a batch of images, or where a run failed."""
    shape, count = parse_shape(name), settings.pairs + 1
    with TemporaryDirectory() as place, ExitStack() as stack:
        images, classes = link(folder, Path(place) / "images", pictures, settings.batch)
        prepare(Path(place), shape, classes)
        run = EpochRun(
            place=place,
            shape=shape,
            classes=len(classes),
            dtype=settings.dtype,
            device=str(settings.device),
            threads=settings.threads,
            batch=settings.batch,
            workers=workers,
            epochs=count,
            compiled=settings.compiled,
        )
        print(
            f"timing {count} epochs of {images} images, {name} {settings.dtype}, threads={settings.threads} ...",
            file=sys.stderr,
        )
        sides = [stack.enter_context(Side(title, run)) for title in SIDES]
        times = alternate([side.epoch for side in sides], settings.pairs, warm=1)
        yield Row(
            name,
            settings.dtype,
            settings.threads,
            "epoch",
            images,
            "timm",
            (median(times[0]), median(times[1])),
            divide(times[1], times[0]),
            (sides[0].memory, sides[1].memory),
        )


def link(folder: str, place: Path, pictures: int | None, batch: int) -> tuple[int, tuple[str, ...]]:
    """Link whole batches of a folder's images at a place; return their number and their classes."""
    folders, indices = choose_batches(folder, pictures, batch)
    for index in indices:
        file, label = folders.samples[index]
        (place / folders.classes[label]).mkdir(parents=True, exist_ok=True)
        (place / folders.classes[label] / f"{index}{Path(file).suffix}").symlink_to(Path(file).resolve())
    return len(indices), open_source(str(place)).class_names


def choose_batches(folder: str, pictures: int | None, batch: int) -> tuple[ImageFolder, list[int]]:
    """Return class folders and the indices of whole batches of their images.

    Raises: ValueError for a folder with less than a batch.
    """
    folders, indices = choose(folder, pictures, option="epoch")
    if len(indices) < batch:
        raise ValueError(f"epoch must be a folder of at least a batch of images, got {len(indices)}, batch={batch}")
    return folders, indices[: len(indices) // batch * batch]


def prepare(place: Path, shape: Shape, classes: tuple[str, ...]) -> None:
    """Write the same weights for timm and as a model folder."""
    peer = build_peer(shape, len(classes))
    state, side = peer.state_dict(), shape.pixels // shape.patch
    config = timm_config.read_config(state, timm_config.read_facts(peer))
    model = model_config.build_model(config)
    weights.load(model, timm_tensors.to_vitkit(state, (side, side)))
    preprocess = Preprocess((shape.pixels, shape.pixels), MEAN, STD)
    save(place / "model", Bundle(model, config, preprocess, classes))
    save_file(state, place / "timm.safetensors")


class Side:
    """A process that trains one epoch whenever it is told to."""

    def __init__(self, title: str, run: EpochRun) -> None:
        self.title = title
        self.memory = 0
        self.log = Path(run.place) / f"{title}.log"
        # By import: with -m the module would exist twice, and its `main` would not know the exceptions of the other.
        start = f"import sys; from {epoch_runs.__name__} import main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", start, title, json.dumps(asdict(run))]
        pipe = subprocess.PIPE
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        try:  # a process that is killed leaves its workers, whose processor time is then that of others
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def epoch(self) -> float:
        """Return the seconds of an epoch. Raises: ValueError where the process ended before its end."""
        assert self.process.stdin and self.process.stdout
        try:
            print(file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            last = (self.log.read_text().strip().splitlines() or ["no word of why"])[-1]
            raise ValueError(f"an epoch of {self.title} failed: {last}")
        took, self.memory = json.loads(answer)
        return took
