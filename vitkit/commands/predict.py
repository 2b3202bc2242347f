"""`vitkit predict`: classify images with a trained model."""

import argparse
import sys
from itertools import chain

from vitkit.commands.options import (
    IMAGES,
    STDIN,
    add_images,
    add_optional_out,
    add_reading,
    add_row_format,
    list_names,
    make_reading,
    open_images,
)
from vitkit.convert.open import open_classifier
from vitkit.data.omissions import Omissions
from vitkit.data.sources.source import Source
from vitkit.inference import prediction_rows
from vitkit.inference.prediction import TOP, predict_files, predict_source
from vitkit.inference.prediction_rows import write_predictions


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit predict", description="Predict the classes of pictures, in the order given."
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    add_images(parser, f"{IMAGES}, or other sources, named as for --data.train")
    parser.add_argument(
        "--top",
        type=int,
        help=f"number of classes to show (default: {TOP}, or all above 50 %% if an image may have several)",
    )
    add_row_format(parser, prediction_rows.FORMATS.values())
    add_optional_out(parser, "a new file: .txt, .csv, .jsonl (default: the screen)", "FILE")
    add_reading(parser)
    options = parser.parse_args(arguments)

    form = prediction_rows.choose_format(options.out, options.format, options.overwrite)
    omissions = Omissions()
    parts = open_images(options.images, omissions)
    total = None if STDIN in options.images else sum(len(list_names(part)) for part in parts)
    width = 0 if total is None else max(len(name) for part in parts for name in list_names(part))
    title = None if options.out is None and sys.stdout.isatty() else "predict"  # rows are progress enough
    reading = make_reading(options)
    bundle = open_classifier(options.model)
    predictions = chain.from_iterable(
        predict_source(bundle, part, options.top, reading, title)
        if isinstance(part, Source)
        else predict_files(bundle, chain.from_iterable(part), options.top, reading, title=title, total=total)
        for part in parts
    )
    return write_predictions(predictions, form, width, options.top, bundle, options.out, omissions)
