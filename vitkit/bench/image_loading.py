"""`vitkit bench --loading`: pictures loaded a second, beside torchvision's ImageFolder, in one process."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median

import torch
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from vitkit.bench.peers import Ratio, divide
from vitkit.bench.timing import alternate, seconds
from vitkit.data.augment import RandomResizedCrop
from vitkit.data.order import TrainingOrder
from vitkit.data.pictures import Augmentation, ImageReading, Loader, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Files

BATCH = 16  # small, so that workers share few pictures evenly
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
BICUBIC = v2.InterpolationMode.BICUBIC
HEADER = """
training: random resized crop, flip; evaluation: shorter side to size / 0.875, centre crop
ratio is pictures/s over torchvision's: median of the rounds (first-third quartile)

transform    loader          pictures/s   ratio"""


@dataclass(frozen=True)
class Rate:
    """`rate` is the median of the rounds in pictures/s; `ratio` is to torchvision's."""

    transform: str
    loader: str
    rate: float
    ratio: Ratio

    def __str__(self) -> str:
        return f"{self.transform:12} {self.loader:14} {self.rate:11.1f}   {self.ratio}"


def compare(
    folder: str, *, size: int, workers: int, reduce: float, pictures: int | None, rounds: int
) -> Iterator[Rate]:
    """Every loader reads the same pictures of class folders, once to warm up, then in turn, forth and back.

    Args: pictures: how many, drawn at random; None for all.
    """
    preprocess = Preprocess((size, size), MEAN, STD, crop=0.875)
    folders, chosen = choose(folder, pictures)
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
            own = Pictures(source, preprocess, augment=Augmentation(transforms), reading=ImageReading(reduce=scale))
            loaders[title] = Loader(own, TrainingOrder(range(len(chosen)), BATCH, 0), workers)
        timers = [partial(seconds, partial(exhaust, loader), torch.device("cpu")) for loader in loaders.values()]
        times = alternate(timers, rounds, warm=1)  # starts the workers and fills the system's cache of files
        for title, took in zip(loaders, times, strict=True):
            yield Rate(name, title, len(chosen) / median(took), divide(times[0], took))


def choose(folder: str, pictures: int | None, *, option: str = "loading") -> tuple[ImageFolder, list[int]]:
    """Return class folders and the indices of so many of their pictures, drawn at random; None takes all.

    Raises: ValueError for another folder. Args: option: what is then to blame.
    """
    try:
        folders = ImageFolder(folder)
    except FileNotFoundError as error:
        reason = str(error).splitlines()[0]
        message = f"{option} must be a folder of class folders with pictures, got {option}={folder} ({reason})"
        raise ValueError(message) from None
    indices = list(range(len(folders)))
    random.Random(0).shuffle(indices)
    return folders, indices[:pictures]


def exhaust(loader: Iterable[object]) -> None:
    for _ in loader:
        pass


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "pillow")}
