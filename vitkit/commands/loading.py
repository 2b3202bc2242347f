"""`vitkit bench --loading`: pictures loaded a second, beside torchvision's ImageFolder, in one process."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median

import torch
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from vitkit.data.augment import RandomResizedCrop
from vitkit.data.order import TrainingOrder
from vitkit.data.pictures import Loader, Pictures
from vitkit.data.sources import Files
from vitkit.preprocess import Preprocess

BATCH = 16  # small, so that workers share few pictures evenly
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
BICUBIC = v2.InterpolationMode.BICUBIC
HEADER = """
training: random resized crop, flip; evaluation: shorter side to size / 0.875, centre crop
ratio is pictures/s over torchvision's: median of the rounds (least-greatest)

transform    loader          pictures/s   ratio"""


@dataclass(frozen=True)
class Rate:
    """`rate` is the median of the rounds in pictures/s; `ratio` to torchvision's: median, least, greatest."""

    transform: str
    loader: str
    rate: float
    ratio: tuple[float, float, float]

    def __str__(self) -> str:
        middle, least, greatest = self.ratio
        return f"{self.transform:12} {self.loader:14} {self.rate:11.1f}   {middle:5.2f} ({least:.2f}-{greatest:.2f})"


def compare(
    folder: str, *, size: int, workers: int, reduce: float, pictures: int | None, rounds: int
) -> Iterator[Rate]:
    """Every loader reads the same pictures of class folders, once to warm up, then in turn, forth and back.

    Args: pictures: how many, drawn at random; None for all.
    """
    rules = {
        f"workers must be at least 0, got workers={workers}": workers >= 0,
        f"reduce must be at least 1, got reduce={reduce:g}": reduce >= 1,
        f"pictures must be at least 1, got pictures={pictures}": pictures is None or pictures >= 1,
    }
    if not all(rules.values()):
        raise ValueError("; ".join(rule for rule, holds in rules.items() if not holds))
    preprocess = Preprocess((size, size), MEAN, STD, crop=0.875)
    folders = indexed(folder)
    chosen = list(range(len(folders)))
    random.Random(0).shuffle(chosen)
    chosen = chosen[:pictures]
    files, labels = zip(*(folders.samples[index] for index in chosen), strict=True)
    source = Files(files, folders.classes, labels)
    varied = [v2.RandomResizedCrop(size, interpolation=BICUBIC), v2.RandomHorizontalFlip()]
    cropped = [v2.Resize(int(size / preprocess.crop), BICUBIC), v2.CenterCrop(size)]
    numbers = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    for name, augment, steps in (("training", varied, varied), ("evaluation", [], cropped)):
        peer = Subset(ImageFolder(folder, v2.Compose([*steps, *numbers])), chosen)
        loaders: dict[str, Iterable[object]] = {
            "torchvision": DataLoader(
                peer,
                BATCH,
                shuffle=True,
                num_workers=workers,
                persistent_workers=workers > 0,
                pin_memory=torch.cuda.is_available(),
            )
        }
        readers = {"vitkit": (augment, None), f"  reduce={reduce:g}": (augment, reduce)}
        if augment:
            readers["  own crop"] = [RandomResizedCrop((size, size)), *augment[1:]], None
        for title, (transforms, scale) in readers.items():
            own = Pictures(source, preprocess, augment=transforms, reduce=scale)
            loaders[title] = Loader(own, TrainingOrder(range(len(chosen)), BATCH, 0), workers)
        times = alternate([partial(exhaust, loader) for loader in loaders.values()], rounds)
        for title, took in zip(loaders, times, strict=True):
            ratios = [theirs / ours for theirs, ours in zip(times[0], took, strict=True)]
            ratio = median(ratios), min(ratios), max(ratios)
            yield Rate(name, title, len(chosen) / median(took), ratio)


def indexed(folder: str) -> ImageFolder:
    try:
        return ImageFolder(folder)
    except FileNotFoundError as error:
        reason = str(error).splitlines()[0]
        message = f"loading must be a folder of class folders with pictures, got loading={folder} ({reason})"
        raise ValueError(message) from None


def exhaust(loader: Iterable[object]) -> None:
    for _ in loader:
        pass


def alternate(steps: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Seconds of each step in each round, every other one backwards: what slows the machine for a while slows all."""
    times: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 1):
        for index in range(len(steps)) if number % 2 else reversed(range(len(steps))):
            start = time.perf_counter()
            steps[index]()
            if number:  # the first starts the workers and fills the system's cache of files
                times[index].append(time.perf_counter() - start)
    return times


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "pillow")}
