"""`vitkit attend`: attention maps of pictures."""

import argparse
from itertools import chain
from pathlib import Path

from vitkit.commands.options import (
    add_exclude,
    add_images,
    add_optional_out,
    add_size,
    collect_images,
    open_resized,
    parse_layer,
)
from vitkit.data.omissions import Omissions
from vitkit.data.preprocess import PictureError
from vitkit.interpret.draw.map_figures import FORMATS
from vitkit.interpret.examine.attention_maps import (
    MapMethod,
    MapOptions,
    Query,
    map_attention,
    map_relevance,
    map_rollout,
)
from vitkit.interpret.examine.picture_maps import attend, load_attention_model, write_maps
from vitkit.support.files import require_new

METHODS: dict[str, MapMethod] = {"raw": map_attention, "rollout": map_rollout, "relevance": map_relevance}


def parse_query(text: str) -> Query:
    """Parse a token such as `cls`, or `3,5` for row and column."""
    row, comma, column = text.partition(",")
    if not comma and not text.lstrip("-").isdigit():
        return text
    try:
        return int(row), int(column)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a token such as cls, or row,column, got {text}") from None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit attend",
        description="Draw attention maps of pictures: for each picture the map on the photo, the model's input and the "
        "heads of the layer side by side, and a JSON file with the values. An attention map does not explain the "
        "answer: vitkit heads measures by ablation whether a head matters.",
        epilog="example: vitkit attend runs/classify_digits/model PICTURES --out drawn",
    )
    parser.add_argument("model", help="a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME")
    add_images(parser)
    add_size(parser)
    add_exclude(parser)
    add_optional_out(parser, "a new or empty folder (default: %(default)s)", default=Path("attention"))
    parser.add_argument(
        "--map",
        choices=METHODS,
        help="raw attention, attention rollout, or relevance for a class or text (default: raw, with --text relevance)",
    )
    parser.add_argument(
        "--layers",
        type=parse_layer,
        nargs="+",
        default=(-1,),
        metavar="LAYER",
        help="of raw attention: index, negative from the end, or name (default: the last)",
    )
    parser.add_argument("--heads", type=int, nargs="+", metavar="HEAD", help="of raw attention (default: all)")
    parser.add_argument(
        "--query", type=parse_query, help="cls, reg0, or row,column of a patch (default: what the model pools)"
    )
    parser.add_argument("--class", dest="target", metavar="NAME", help="of relevance (default: the most likely)")
    parser.add_argument("--text", nargs="+", default=(), help="captions for a CLIP to compare with the pictures")
    parser.add_argument(
        "--start",
        type=int,
        metavar="LAYER",
        help="first layer of rollout and relevance (default: 0, with --text the last)",
    )
    parser.add_argument("--robust", action="store_true", help="end the colour scale at the 98th percentile")
    parser.add_argument(
        "--format", choices=[suffix[1:] for suffix in FORMATS], default="png", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--maps",
        action="store_true",
        help="also write the model's input and each map alone, as PNG files of the input's size without titles",
    )
    parser.add_argument("--json", action="store_true", help="JSON files only, no figures")
    options = parser.parse_args(arguments)

    omissions = Omissions()
    folder = require_new(options.out, options.overwrite, folder=True)
    parts = collect_images(options.images, omissions, options.exclude)
    model = load_attention_model(open_resized(options), options.text)
    method = METHODS[options.map or ("relevance" if options.text else "raw")]
    map_options = MapOptions(options.layers, options.heads, options.query, options.target, options.start)
    failures: list[PictureError] = []
    paths = chain.from_iterable(parts)
    images = attend(model, paths, options=map_options, method=method, unreadable=failures.append)
    count = write_maps(images, folder, None if options.json else options.format, options.robust, options.maps)
    omissions.unreadable += map(str, failures)
    return omissions.report(count + len(failures))
