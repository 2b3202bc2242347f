"""`vitkit bench --epoch`: whole epochs of `vitkit fit` and of timm's training loop, on the same images.

Equal: the images, the initial weights, image size, batch, workers, threads, precision, AdamW with its learning rate at
the peak and its weight decay, a random resized crop of 8-100 % and a flip, the mean and deviation of ImageNet. Neither
side has RandAugment, colour jitter, mixing, label smoothing, gradient clipping or averaged weights.

Different: vitkit runs all of `vitkit fit` (a seed for each image, its own crop, which averages blocks of pixels before
it resamples, a check that loss and gradient norm are finite, a schedule, metrics after each step). timm runs the loop
of its train.py: create_loader, which normalises a batch in the training process, create_optimizer_v2, the step, the
mean loss.

Each side is a process, and waits while the other one trains. The first epoch does not count;
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
from vitkit.bench.image_loading import choose_images
from vitkit.bench.peers import COLUMNS, LEGEND, Row, Settings, compute_time_ratio
from vitkit.bench.timing import alternate_timers
from vitkit.bench.vit_steps import Shape, build_peer, parse_shape
from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.open import open_source
from vitkit.support.errors import format_count

PATIENCE = 30  # seconds for a side to end by itself after its last epoch
HEADER = f"""
an epoch: `vitkit fit` and the loop of timm's train.py, each in its own process: loader, augmentation, step
equal: images, initial weights, size, batch, workers, threads, precision, AdamW, random resized crop, flip; no more
not timed: the first epoch, validation, checkpoints; MB is of the training process, without workers
{LEGEND}
{COLUMNS}"""


def compare(name: str, settings: Settings, *, folder: str, pictures: int | None, workers: int) -> Iterator[Row]:
    """Yield a row of epochs. Raises: ValueError for a folder with less than a batch of images, or if a run fails."""
    shape, count = parse_shape(name), settings.pairs + 1
    with TemporaryDirectory() as temporary, ExitStack() as stack:
        images, classes = link_images(folder, Path(temporary) / "images", pictures, settings.batch)
        write_models(Path(temporary), shape, classes)
        run = EpochRun(
            folder=temporary,
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
            f"timing {format_count(count, 'epochs')} of {format_count(images, 'images')}, {name} {settings.dtype}, "
            f"threads={settings.threads} ...",
            file=sys.stderr,
        )
        sides = [stack.enter_context(Side(title, run)) for title in SIDES]
        times = alternate_timers([side.run_epoch for side in sides], settings.pairs, warm=1)
        yield Row(
            name,
            settings.dtype,
            settings.threads,
            "epoch",
            images,
            "timm",
            (median(times[0]), median(times[1])),
            compute_time_ratio(times[1], times[0]),
            (sides[0].memory, sides[1].memory),
        )


def link_images(folder: str, links: Path, pictures: int | None, batch: int) -> tuple[int, tuple[str, ...]]:
    """Make links to whole batches of a folder's images; return their number and their classes."""
    folders, indices = choose_batches(folder, pictures, batch)
    for index in indices:
        file, label = folders.samples[index]
        (links / folders.classes[label]).mkdir(parents=True, exist_ok=True)
        (links / folders.classes[label] / f"{index}{Path(file).suffix}").symlink_to(Path(file).resolve())
    return len(indices), open_source(str(links)).class_names


def choose_batches(folder: str, pictures: int | None, batch: int) -> tuple[ImageFolder, list[int]]:
    """Return class folders and the indices of whole batches of their images.

    Raises: ValueError for a folder with less than a batch.
    """
    folders, indices = choose_images(folder, pictures, option="epoch")
    if len(indices) < batch:
        raise ValueError(f"epoch must be a folder of at least a batch of images, got {len(indices)}, batch={batch}")
    return folders, indices[: len(indices) // batch * batch]


def write_models(folder: Path, shape: Shape, classes: tuple[str, ...]) -> None:
    """Write a model folder, and a file with the same weights for timm."""
    peer = build_peer(shape, len(classes))
    state, side = peer.state_dict(), shape.pixels // shape.patch
    config = timm_config.read_config(state, timm_config.read_facts(peer))
    model = model_config.build_model(config)
    weights.load(model, timm_tensors.to_vitkit(state, (side, side)))
    preprocess = Preprocess((shape.pixels, shape.pixels), MEAN, STD)
    save(folder / "model", Bundle(model, config, preprocess, classes))
    save_file(state, folder / "timm.safetensors")


class Side:
    """A process that trains one epoch for each call of `run_epoch`."""

    def __init__(self, title: str, run: EpochRun) -> None:
        self.title = title
        self.memory = 0
        self.log = Path(run.folder) / f"{title}.log"
        # By import: with -m the module would exist twice, and its `main` would not catch the other's exceptions.
        start = f"import sys; from {epoch_runs.__name__} import main; main(*sys.argv[1:])"
        command = [sys.executable, "-c", start, title, json.dumps(asdict(run))]
        pipe = subprocess.PIPE
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: object) -> None:
        try:  # a killed process leaves its workers, whose processor time would then count as others'
            self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()

    def run_epoch(self) -> float:
        """Train an epoch and return its seconds. Raises: ValueError if the process ends before."""
        assert self.process.stdin and self.process.stdout
        try:
            print(file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            last = (self.log.read_text().strip().splitlines() or ["without a message"])[-1]
            raise ValueError(f"an epoch of {self.title} failed: {last}")
        seconds, self.memory = json.loads(answer)
        return seconds
