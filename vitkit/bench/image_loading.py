"""`vitkit bench --loading`: images loaded per second, beside torchvision's ImageFolder, in one process."""

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

from vitkit.bench.peers import Ratio, compute_time_ratio
from vitkit.bench.timing import alternate_timers, time_step
from vitkit.data.augment import RandomResizedCrop
from vitkit.data.order import TrainingOrder
from vitkit.data.pictures import Augmentation, ImageReading, Loader, Pictures
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Files

BATCH = 16  # small, so that workers share even few images evenly
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
    """Yield the rates of loaders of the same images in class folders, run in alternation after a warm-up.

    Args: pictures: number of images, drawn at random; None for all.
    """
    preprocess = Preprocess((size, size), MEAN, STD, crop=0.875)
    folders, indices = choose_images(folder, pictures)
    files, labels = zip(*(folders.samples[index] for index in indices), strict=True)
    source = Files(files, folders.classes, labels)
    training = [v2.RandomResizedCrop(size, interpolation=BICUBIC), v2.RandomHorizontalFlip()]
    evaluation = [v2.Resize(int(size / preprocess.crop), BICUBIC), v2.CenterCrop(size)]
    normalisation = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    for name, augment, steps in (("training", training, training), ("evaluation", [], evaluation)):
        peer = Subset(ImageFolder(folder, v2.Compose([*steps, *normalisation])), indices)
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
            dataset = Pictures(source, preprocess, augment=Augmentation(transforms), reading=ImageReading(reduce=scale))
            loaders[title] = Loader(dataset, TrainingOrder(range(len(indices)), BATCH, 0), workers)
        timers = [partial(time_step, partial(read_batches, loader), torch.device("cpu")) for loader in loaders.values()]
        times = alternate_timers(timers, rounds, warm=1)  # the warm-up starts workers and fills the file cache
        for title, seconds in zip(loaders, times, strict=True):
            yield Rate(name, title, len(indices) / median(seconds), compute_time_ratio(times[0], seconds))


def choose_images(folder: str, pictures: int | None, *, option: str = "loading") -> tuple[ImageFolder, list[int]]:
    """Return class folders and the indices of `pictures` of their images, drawn at random; None takes all.

    Args: option: named by the error. Raises: ValueError for a folder without class folders.
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


def read_batches(loader: Iterable[object]) -> None:
    for _ in loader:
        pass


def get_versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "torchvision", "pillow")}
