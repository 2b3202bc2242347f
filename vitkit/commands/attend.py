"""`vitkit attend`: where a model looks in pictures."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitkit.commands.attended import TOP, Attended
from vitkit.commands.examined import open_examined
from vitkit.commands.looking import Asked, Look, Query, Subject, raw, relevant, rolled, with_texts
from vitkit.commands.predict import named
from vitkit.convert.open import open_dual
from vitkit.data.preprocess import PictureError, read
from vitkit.inference.prediction import refuse
from vitkit.interpret.geometry import Frame
from vitkit.interpret.pictures import STORED, save_figure
from vitkit.support.files import free_name, new_or_empty, replacing
from vitkit.support.output import written

MAPS: dict[str, Look] = {"raw": raw, "rollout": rolled, "relevance": relevant}


def attend(
    model: str | Path | Subject,
    paths: str | Path | Iterable[str | Path],
    *,
    asked: Asked | None = None,
    look: Look = raw,
    texts: Sequence[str] = (),
    unreadable: Callable[[PictureError], None] = refuse,
) -> Iterator[Attended]:
    """Look where a model looks in picture files, one after the other.

    Args:
        model: a model folder, timm:NAME, openclip:NAME@PRETRAINED or hf:NAME.
        paths: also just one.
        asked: which layers, heads, query (default: the last layer, all heads, that which the model pools).
        look: `raw`, `rolled` or `relevant` of vitkit.commands.looking: attention as it is, rolled out, or for a class.
        texts: of a CLIP: what its pictures are compared with.
        unreadable: gets the error of each picture that fails.
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    subject = model if isinstance(model, Subject) else opened(model, texts)
    for path in map(Path, paths):
        try:
            photo = subject.examined.preprocess.convert(read(path))
        except PictureError as error:
            unreadable(error)
            continue
        yield attended(subject, path, photo, look, asked or Asked())


def opened(source: str | Path, texts: Sequence[str] = ()) -> Subject:
    """Raises: ValueError, one line, also for texts and a model that reads none."""
    return with_texts(open_dual(source), texts) if texts else Subject(open_examined(source))


def attended(subject: Subject, path: Path, photo: Image.Image, look: Look, asked: Asked) -> Attended:
    examined = subject.examined
    layout = examined.layout
    frame = Frame.of(examined.preprocess, photo.size, layout)
    image = examined.preprocess(photo)[None].to(next(examined.model.parameters()))
    outputs, looked = look(subject, image, asked)
    if not outputs.isfinite().all():
        raise ValueError(f"model must give finite numbers, got others for {path}")
    best = likeliest(outputs, examined.classes, examined.several)
    return Attended(path, photo, frame, layout, examined, asked.query, best, looked)


def likeliest(outputs: Tensor, classes: Sequence[str], several: bool) -> tuple[tuple[str, float], ...]:
    if not classes or (len(classes) == 1 and not several):  # of one alone it is always 100 %
        return ()
    shares = outputs.float().sigmoid() if several else outputs.float().softmax(0)
    best = shares.topk(min(TOP, len(classes)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((classes[int(place)], float(share)) for place, share in pairs)


def write(found: Iterable[Attended], folder: Path, suffix: str | None, robust: bool) -> int:
    """Files for each photo, told as they are there; without a suffix the numbers alone. Gives back how many photos."""
    taken: set[str] = set()
    count = 0
    with written(None) as screen:
        for one in found:
            count += 1
            folder.mkdir(exist_ok=True)  # not for nothing
            stem = free_name(one.path.stem, taken).removesuffix(".png")
            names = [f"{stem}.json"]
            for name, figure in one.figures(robust=robust) if suffix else ():
                save_figure(figure, folder / f"{stem}_{name}.{suffix}")
                names.append(f"{stem}_{name}.{suffix}")
            with replacing(folder / names[0]) as beside:
                text = json.dumps(one.to_dict(), ensure_ascii=False)
                beside.write_text(text + "\n", "utf-8", errors="backslashreplace")  # as JSON spells what is no text
            best = "".join(f"  {name} {share:5.1%}" for name, share in one.predictions[:3])
            print(f"{one.path}{best}  ->  {', '.join(names)}", file=screen, flush=True)
            for flag in one.flags:
                print(f"note: {one.path}: {flag}", file=sys.stderr)
    return count


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
    parser.add_argument("images", nargs="+", help="picture files, folders to search for them, - for a list on stdin")
    parser.add_argument("--out", type=Path, default=Path("attention"), metavar="DIR", help="new or empty (%(default)s)")
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

    folder, parts = new_or_empty(options.out), named(options.images)
    subject = opened(options.model, options.text)
    look = MAPS[options.map or ("relevance" if options.text else "raw")]
    asked = Asked(options.layers, options.heads, options.query, options.target, options.start)
    failures: list[PictureError] = []
    found = attend(subject, chain.from_iterable(parts), asked=asked, look=look, unreadable=failures.append)
    count = write(found, folder, None if options.json else options.format, options.robust)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if failures:
        print(f"error: {len(failures)} of {count + len(failures)} pictures could not be read", file=sys.stderr)
    return 1 if failures else 0
