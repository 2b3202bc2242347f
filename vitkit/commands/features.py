"""`vitkit features`: what a trained model makes of pictures, before its head reads it.

N pictures, D width, h w patches down and across.
"""

import argparse

from vitkit.commands.options import add_columns, add_out, add_reading, add_unlabelled, make_reading
from vitkit.convert.open import open_image_tower
from vitkit.data.annotations.labels import LABELS
from vitkit.data.annotations.no_annotation import UNLABELLED
from vitkit.data.sources.open import open_source
from vitkit.inference import feature_files
from vitkit.inference.image_features import stream


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit features",
        description="Write what a model makes of pictures, before its head reads it: a vector for each picture, as the "
        "model pools them (of a CLIP its embedding, of length 1), or for each patch. The file also holds names, places "
        "in the source, labels and class names.",
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("source", help="labelled pictures, named as for --data.train")
    add_unlabelled(parser)
    add_out(parser, "FILE", "new: .parquet, .npz or .safetensors")
    parser.add_argument("--dense", action="store_true", help="a vector for each patch: (N, D, h, w) in place of (N, D)")
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=(),
        metavar="BLOCK",
        help="outputs of blocks, from 0, or from the end: -1 is the last (default: its normalised output)",
    )
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="(default: %(default)s)")
    add_columns(parser)
    add_reading(parser)
    options = parser.parse_args(arguments)

    feature_files.check_feature_file(options.out)
    bundle = open_image_tower(options.model)
    source = open_source(options.source, UNLABELLED if options.unlabelled else LABELS, tuple(options.columns))
    found = stream(
        bundle,
        source,
        layers=options.layers,
        dense=options.dense,
        dtype=options.dtype,
        reading=make_reading(options),
    )
    shapes, count, skipped = feature_files.collect(options.out, found, source.class_names)
    for name, shape in shapes.items():
        print(f"{name}: {count:,} x {' x '.join(map(str, shape))}, {options.dtype}")
    source.omissions.unreadable += skipped
    return source.omissions.report(len(source), more=", and have no row")
