"""`vitkit attend`: where a model looks in pictures."""

import argparse
from itertools import chain
from pathlib import Path

from vitkit.commands.options import add_images, add_optional_out, list_images
from vitkit.data.omissions import Omissions
from vitkit.data.preprocess import PictureError
from vitkit.interpret.draw.map_figures import STORED
from vitkit.interpret.examine.attention_maps import Asked, Look, Query, raw, relevant, rolled
from vitkit.interpret.examine.picture_maps import attend, load_attention_model, write
from vitkit.support.files import require_new_folder

MAPS: dict[str, Look] = {"raw": raw, "rollout": rolled, "relevance": relevant}


def query(text: str) -> Query:
    """`cls`, or `3,5` for a row and a column."""
    row, comma, column = text.partition(",")
    if not comma and not text.lstrip("-").isdigit():
        return text
    try:
        return int(row), int(column)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a token such as cls, or row,column, got {text}") from None


def layer(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit attend",
        description="Draw where a model looks in pictures, and write the numbers: for each picture the map on the "
        "photo, the heads of the layer side by side, and a JSON file. A map shows what is looked at, not why a model "
        "answers as it does: vitkit heads tells whether a head matters.",
        epilog="example: vitkit attend runs/classify_digits/model PICTURES --out drawn",
    )
    parser.add_argument("model", help="a model folder, timm:NAME, openclip:NAME@PRETRAINED, hf:USER/NAME")
    add_images(parser)
    add_optional_out(parser, "new or empty (%(default)s)", default=Path("attention"))
    parser.add_argument(
        "--map",
        choices=MAPS,
        help="raw attention of layers; rollout; relevance for a class or text (default: raw, with --text relevance)",
    )
    parser.add_argument(
        "--layers",
        type=layer,
        nargs="+",
        default=(-1,),
        metavar="LAYER",
        help="of raw, from 0, or from the end, or by name (default: the last)",
    )
    parser.add_argument("--heads", type=int, nargs="+", metavar="HEAD", help="of raw (default: all)")
    parser.add_argument(
        "--query", type=query, help="who looks: cls, reg0, or row,column of a patch (default: what the model pools)"
    )
    parser.add_argument("--class", dest="target", metavar="NAME", help="of relevance (default: the likeliest)")
    parser.add_argument(
        "--text", nargs="+", default=(), help="what a CLIP compares pictures with, each a whole caption"
    )
    parser.add_argument(
        "--start",
        type=int,
        metavar="LAYER",
        help="the first that counts in rollout and relevance (default: 0, with --text the last)",
    )
    parser.add_argument("--robust", action="store_true", help="colours end at the 98th percentile, which is told")
    parser.add_argument(
        "--format", choices=[suffix[1:] for suffix in STORED], default="png", help="(default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="the numbers alone, no pictures")
    options = parser.parse_args(arguments)

    omissions = Omissions()
    folder, parts = require_new_folder(options.out), list_images(options.images, omissions)
    model = load_attention_model(options.model, options.text)
    look = MAPS[options.map or ("relevance" if options.text else "raw")]
    asked = Asked(options.layers, options.heads, options.query, options.target, options.start)
    failures: list[PictureError] = []
    maps = attend(model, chain.from_iterable(parts), asked=asked, look=look, unreadable=failures.append)
    count = write(maps, folder, None if options.json else options.format, options.robust)
    omissions.unreadable += map(str, failures)
    return omissions.report(count + len(failures))
