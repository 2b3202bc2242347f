"""`vitkit explain`: attention maps of a photo, and the effect of removing each head, as a page of one file."""

import argparse
import sys

from vitkit.commands.options import (
    add_columns,
    add_fold,
    add_language,
    add_out,
    add_reading,
    add_size,
    add_words,
    choose_folds,
    make_reading,
    open_resized,
    parse_layer,
)
from vitkit.inference.prompts import parse_class_names
from vitkit.pages.explain.content import PACKAGE
from vitkit.pages.explain.explanation import BUDGET, PICTURES, StatisticsSource, explain
from vitkit.support.errors import escape_controls
from vitkit.support.files import require_new


def parse_explain_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "vitkit explain",
        description="Write a page of one file that opens from the disk without a network: the attention map of each "
        "head from each patch of a photo, the model's output, and the output without each head; with --data also "
        "attention statistics over many pictures.",
    )
    parser.add_argument("model", help="a model folder, or timm:NAME, openclip:NAME@PRETRAINED, hf:NAME")
    parser.add_argument("photo", help="a picture file")
    add_out(parser, "FILE", "a new file: page.html", short=("-o",))
    add_words(parser)
    add_size(parser)
    parser.add_argument(
        "--layers", nargs="+", default=(), metavar="LAYER", help="names with *, or indices: -1 is the last"
    )
    parser.add_argument("--budget", default=BUDGET, help="size of the weights in the page (default: %(default)s)")
    parser.add_argument(
        "--data", metavar="SOURCE", help="pictures for statistics: any folder of them, or as for --data.train"
    )
    parser.add_argument("--pictures", type=int, help=f"number of pictures from --data (default: {PICTURES})")
    add_fold(parser)
    add_columns(parser, default=None)
    add_reading(parser)
    add_language(parser, PACKAGE)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_explain_options(arguments)
    out = require_new(options.out, options.overwrite)
    choices = {name: getattr(options, name) for name in ("pictures", "fold", "folds")}
    choices["columns"] = options.columns and tuple(options.columns)
    given = {name: value for name, value in choices.items() if value is not None}
    if given and options.data is None:
        got = ", ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(f"{' and '.join(given)} must come with --data, got {got} alone")
    choose_folds(options)
    page = explain(
        open_resized(options),
        options.photo,
        classes=() if options.classes is None else parse_class_names(options.classes),
        layers=[parse_layer(layer) for layer in options.layers],
        data=None if options.data is None else StatisticsSource(options.data, **given),
        budget=options.budget,
        reading=make_reading(options),
        language=options.language,
    )
    page.save(out, overwrite=options.overwrite)
    for note in page.notes:
        print(escape_controls(f"{out}: {note}"), file=sys.stderr)
    return page.omissions.report(page.samples)
