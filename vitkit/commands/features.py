"""`vitkit features`: write the features of images, the outputs of a model before its head.

N pictures, D width, h w patches down and across.
"""

import argparse

from vitkit.commands.options import (
    add_columns,
    add_out,
    add_reading,
    add_size,
    add_unlabelled,
    make_reading,
    open_resized,
)
from vitkit.convert.open import open_image_tower
from vitkit.data.sources.open import open_pictures
from vitkit.inference import feature_files
from vitkit.inference.image_features import stream_features


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit features",
        description="Write the features of pictures, the outputs of a model before its head: the pooled vector of each "
        "picture (for a CLIP, the normalised embedding), or a vector for each patch. The file also holds names, "
        "indices in the source, labels and class names.",
    )
    parser.add_argument("model", help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("source", help="pictures: named as for --data.train, or an image or any folder")
    add_unlabelled(parser)
    add_out(parser, "FILE", "a new file: .parquet, .npz or .safetensors")
    parser.add_argument("--dense", action="store_true", help="a vector for each patch: (N, D, h, w) instead of (N, D)")
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=(),
        metavar="BLOCK",
        help="blocks whose outputs to write, from 0, or -1 for the last (default: the normalised output of the last)",
    )
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="(default: %(default)s)")
    add_columns(parser)
    add_size(parser)
    add_reading(parser)
    options = parser.parse_args(arguments)

    feature_files.check_feature_file(options.out, options.overwrite)
    bundle = open_image_tower(open_resized(options))
    source = open_pictures(options.source, tuple(options.columns), options.exclude, options.unlabelled)
    batches = stream_features(
        bundle,
        source,
        layers=options.layers,
        dense=options.dense,
        dtype=options.dtype,
        reading=make_reading(options),
    )
    shapes, count, skipped = feature_files.write_features(
        options.out, batches, source.class_names, overwrite=options.overwrite
    )
    for name, shape in shapes.items():
        print(f"{name}: {count:,} x {' x '.join(map(str, shape))}, {options.dtype}")
    source.omissions.unreadable += skipped
    return source.omissions.report(len(source), more=", and have no row")
