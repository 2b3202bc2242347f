"""`vitkit explain`: where a model looks in a photo, and whether it matters, as a page of one file."""

import argparse
import re
import sys

from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_language,
    add_out,
    add_reading,
    add_words,
    chosen_folds,
    chosen_reading,
)
from vitkit.inference.prompts import parse_class_names
from vitkit.pages.explain.content import PACKAGE
from vitkit.pages.explain.explanation import BUDGET, PICTURES, StatisticsSource, explain
from vitkit.support.files import require_new_file


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit explain",
        description="Write a page of one file that opens from the disk without a network: where each head looks from "
        "each patch of a photo, what the model says, and what it says without each head; with --data also how its "
        "heads look over many pictures.",
    )
    parser.add_argument("model", help="a model folder, or timm:NAME, openclip:NAME@PRETRAINED, hf:NAME")
    parser.add_argument("photo", help="a picture file")
    add_out(parser, "FILE", "a new file: page.html", short=("-o",))
    add_words(parser)
    parser.add_argument(
        "--layers", nargs="+", default=(), metavar="LAYER", help="names with *, or places: -1 is the last"
    )
    parser.add_argument("--budget", default=BUDGET, help="of the weights in the page (default: %(default)s)")
    parser.add_argument(
        "--data", metavar="SOURCE", help="pictures for statistics: any folder of them, or as for --data.train"
    )
    parser.add_argument("--pictures", type=int, help=f"so many of them (default: {PICTURES})")
    add_fold(parser)
    add_columns(parser, default=None)
    add_reading(parser)
    add_language(parser, PACKAGE)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    out = require_new_file(options.out)
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
        classes=() if options.classes is None else parse_class_names(options.classes),
        layers=[place_or_name(layer) for layer in options.layers],
        data=None if options.data is None else StatisticsSource(options.data, **given),
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
