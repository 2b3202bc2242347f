"""`vitkit explain`: where a model looks in a photo, and whether it matters, as a page of one file."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageOps

from vitkit.commands.batches import add_fold, add_reading, chosen_folds, chosen_reading
from vitkit.commands.explanation import PICTURES, Data, answered, called, drawn_from, kept_layers, over_data, read_from
from vitkit.data.batches import Reading
from vitkit.data.preprocess import read
from vitkit.inference.prompts import class_names
from vitkit.interpret.examine.image_model import Examined, open_examined
from vitkit.interpret.page.content import Picture, page
from vitkit.interpret.page.page import Page, fresh
from vitkit.interpret.see.capture import number_of_bytes
from vitkit.support.devices import present
from vitkit.support.texts import ENGLISH, languages, texts_in

BUDGET = "25MB"  # what a mail takes, and a browser opens at once


def explain(
    model: str | Path | Examined,
    photo: str | Path | Image.Image,
    *,
    classes: Sequence[str] = (),
    layers: Sequence[str | int] = (),
    data: str | Data | None = None,
    budget: int | float | str = BUDGET,
    reading: Reading | None = None,
    language: str = ENGLISH,
) -> Page:
    """A page that shows where each head looks from each patch, and what the model says without it.

        vitkit.explain("runs/classify_digits/model", "seven.png").save("seven.html")

    In a notebook the page is shown as it is.

    Args:
        model: a model folder, timm:NAME, openclip:NAME@PRETRAINED or hf:NAME.
        classes: what a CLIP is to tell apart, in words.
        photo: a file, or a picture as it was opened.
        layers: names as in `interpret.layers.chosen`, or places among those that make the picture's vector; none means
            all.
        data: pictures for statistics, named as for training; a folder may be of any kind, unless a fold is asked.
        budget: bytes of the weights in the page; of more the last layers are kept.
        reading: device, and how the pictures of `data` are read.
        language: of what the page says.

    Raises: ValueError, one line, also for a model whose tokens are not known.
    """
    reading = reading or Reading()
    reading.check()
    texts_in(language)
    most = number_of_bytes(budget)
    data = Data(data) if isinstance(data, str) else data
    drawn = None if data is None else drawn_from(data, reading)
    if not isinstance(photo, Image.Image) and Path(photo).is_dir():
        raise ValueError(f"photo must be one picture, got the folder {photo}; vitkit attend takes folders")
    picture = ImageOps.exif_transpose(photo) if isinstance(photo, Image.Image) else read(photo)
    examined = model if isinstance(model, Examined) else open_examined(model, classes)
    examined.to(present(reading.device))
    shown = Picture(picture, named(photo), examined.preprocess, examined.layout, read_from(examined))
    weight = next(examined.model.parameters())
    image = examined.preprocess(picture)[None].to(weight)
    kept = kept_layers(examined, image, layers, most)
    told = answered(examined, image, kept.layers)
    over = None if data is None or drawn is None else over_data(examined, data, drawn)
    return page(called(examined.source), shown, kept.layers, told, over, kept.notes, language)


def named(photo: str | Path | Image.Image) -> str:
    return "a picture" if isinstance(photo, Image.Image) else Path(photo).name


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit explain",
        description="Write a page of one file that opens from the disk without a network: where each head looks from "
        "each patch of a photo, what the model says, and what it says without each head; with --data also how its "
        "heads look over many pictures.",
    )
    parser.add_argument("model", help="a model folder, or timm:NAME, openclip:NAME@PRETRAINED, hf:NAME")
    parser.add_argument("photo", help="a picture file")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="a new file: page.html")
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="of a CLIP: words, a file of them, or imagenet")
    parser.add_argument(
        "--layers", nargs="+", default=(), metavar="LAYER", help="names with *, or places: -1 is the last"
    )
    parser.add_argument("--budget", default=BUDGET, help="of the weights in the page (default: %(default)s)")
    parser.add_argument(
        "--data", metavar="SOURCE", help="pictures for statistics: any folder of them, or as for --data.train"
    )
    parser.add_argument("--pictures", type=int, help=f"so many of them (default: {PICTURES})")
    add_fold(parser)
    parser.add_argument("--columns", nargs=2, metavar=("FILE", "LABEL"), help="of a table")
    add_reading(parser)
    parser.add_argument("--language", default=ENGLISH, help=f"{' or '.join(languages())} (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    out = fresh(options.out)
    told = {name: getattr(options, name) for name in ("pictures", "fold", "folds")}
    told["columns"] = options.columns and tuple(options.columns)
    given = {name: value for name, value in told.items() if value is not None}
    if given and options.data is None:
        got = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(f"{' and '.join(given)} must come with --data, got {got} alone")
    chosen_folds(options)
    made = explain(
        options.model,
        options.photo,
        classes=() if options.classes is None else class_names(options.classes),
        layers=[place_or_name(layer) for layer in options.layers],
        data=None if options.data is None else Data(options.data, **given),
        budget=options.budget,
        reading=chosen_reading(options),
        language=options.language,
    )
    made.save(out)
    for note in made.notes:
        print(f"{out}: {note}", file=sys.stderr)
    return 0


def place_or_name(layer: str) -> str | int:
    return int(layer) if re.fullmatch(r"-?\d+", layer) else layer
