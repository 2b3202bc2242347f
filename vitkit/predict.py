"""`vitkit predict`: what a trained classifier sees in pictures."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from vitkit.data.sources import pictures
from vitkit.preprocess import PictureError, Preprocess, read
from vitkit.weights import open_model


class Prediction(NamedTuple):
    """The likeliest classes of one picture, best first."""

    path: Path
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


def refuse(error: PictureError) -> NoReturn:
    raise error


@torch.inference_mode()
def predict(
    model: str | Path,
    paths: Iterable[str | Path],
    *,
    top: int = 3,
    batch: int = 32,
    device: str = "auto",
    unreadable: Callable[[PictureError], None] = refuse,
) -> Iterator[Prediction]:
    """Classify picture files, in order, by the model in a folder. `unreadable` gets the error of each that fails."""
    if top < 1 or batch < 1:
        raise ValueError(f"top and batch must be at least 1, got top={top}, batch={batch}")
    network, preprocess, classes, _ = open_model(model)
    network.to(present(device))
    weight = next(network.parameters())
    readable = tensors(paths, preprocess, unreadable)
    while group := list(islice(readable, batch)):
        logits = network(torch.stack([pixels for _, pixels in group]).to(weight))
        if logits.shape[1] != len(classes):
            raise ValueError(f"model must give a number per class, got {logits.shape[1]} for {len(classes)} classes")
        if not logits.isfinite().all():
            raise ValueError(f"model must give finite numbers, got others for {group[0][0]} or what follows")
        best = logits.float().softmax(dim=1).topk(min(top, len(classes)))
        for (path, _), values, indices in zip(group, best.values.tolist(), best.indices.tolist(), strict=True):
            yield Prediction(path, tuple(classes[index] for index in indices), tuple(values))


def tensors(
    paths: Iterable[str | Path], preprocess: Preprocess, unreadable: Callable[[PictureError], None]
) -> Iterator[tuple[Path, Tensor]]:
    for path in paths:
        try:
            yield Path(path), preprocess(read(path))
        except PictureError as error:
            unreadable(error)


def present(name: str) -> torch.device:
    """The device of that name; "auto" is the fastest here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device must be one that this machine has, got device={name}") from error


def files(images: Iterable[str]) -> list[Path]:
    """Every picture named, and every picture below a folder named."""
    found = {image: pictures(Path(image)) if Path(image).is_dir() else [image] for image in images}
    if empty := [image for image, inside in found.items() if not inside]:
        raise ValueError(f"a folder of images must hold pictures, got none in {', '.join(empty)}")
    return [Path(file) for inside in found.values() for file in inside]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("vitkit predict", description="Name what pictures show.")
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("images", nargs="+", help="picture files, or folders to search for them")
    parser.add_argument("--top", type=int, default=3, help="how many classes to show (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="pictures at a time (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, mps (default: the fastest here)")
    options = parser.parse_args(arguments)

    failures: list[PictureError] = []
    paths = files(options.images)
    wide = max(len(str(path)) for path in paths)
    found = predict(
        options.model, paths, top=options.top, batch=options.batch, device=options.device, unreadable=failures.append
    )
    for path, labels, probabilities in found:
        pairs = zip(labels, probabilities, strict=True)
        print(f"{path!s:<{wide}}", *(f"{label} {probability:5.1%}" for label, probability in pairs), sep="  ")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if failures:
        print(f"error: {len(failures)} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failures else 0
