"""`vitkit learn`: write a page of interactive lessons on attention."""

import argparse
import sys
from pathlib import Path

from vitkit.bundle.bundle import get_preprocess
from vitkit.commands.options import add_language, add_out
from vitkit.convert.open import open_image_tower
from vitkit.data.preprocess import read_image
from vitkit.models.parts import get_image_tower
from vitkit.pages.learn.lessons import draw_waves, learn
from vitkit.pages.learn.position_table import PACKAGE
from vitkit.pages.page import Page, shorten_path
from vitkit.support.files import require_new
from vitkit.support.texts import read_texts


def build_model_page(source: str, picture: Path | None, layer: int, language: str) -> Page:
    """Build the page of a model. Args: source: a folder, or a name as for `vitkit import`. Raises: ValueError."""
    bundle = open_image_tower(source)
    preprocess = get_preprocess(bundle)
    images = (
        draw_waves(preprocess.channels, *preprocess.size) if picture is None else preprocess(read_image(picture))[None]
    )
    return learn(
        get_image_tower(bundle.model),
        images,
        layer=layer,
        name=shorten_path(source),
        picture="" if picture is None else picture.name,
        language=language,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit learn",
        description="Write a page of interactive lessons: dot products, softmax, attention in a sentence, positions, "
        "one layer step by step, sampling, counting parameters. It is one file that needs no network.",
        epilog="example: vitkit learn runs/classify_digits/model --layer -1 -o learn.html",
    )
    parser.add_argument(
        "model",
        nargs="?",
        help="the model whose layer and learned positions are shown: a folder, timm:NAME, openclip:NAME (default: a "
        "small untrained ViT)",
    )
    add_out(parser, "FILE", "new, such as learn.html", short=("-o",))
    parser.add_argument("--picture", type=Path, metavar="FILE", help="the model's input (default: computed waves)")
    parser.add_argument("--layer", type=int, default=0, help="index of the shown layer; -1 is the last (default: 0)")
    add_language(parser, PACKAGE)
    options = parser.parse_args(arguments)

    require_new(options.out, options.overwrite)
    texts = read_texts(options.language, PACKAGE)
    if options.model is None:
        if options.picture is not None:
            raise ValueError(f"picture must come with a model, got picture={options.picture}")
        page = learn(layer=options.layer, language=options.language)
    else:
        page = build_model_page(options.model, options.picture, options.layer, options.language)
    page.save(options.out, overwrite=options.overwrite)
    print(f"{options.out}: {texts['saved'].format(size=options.out.stat().st_size / 1000)}", file=sys.stderr)
    return 0
