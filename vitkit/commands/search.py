"""`vitkit search`: what a collection has that is like a text or a picture."""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from vitkit.commands.options import add_device
from vitkit.data.sources.source import SUFFIXES
from vitkit.retrieval import gallery
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.query import DUPLICATE, Match
from vitkit.retrieval.scan import escape_path
from vitkit.support.output import format_csv_row, open_output

FORMATS = {".txt": "text", ".json": "json", ".csv": "csv", ".html": "html", ".png": "png"}
SCREEN = ("text", "json", "csv")
COLUMNS = ["score", "file", "caption", "width", "height", "also", "group"]

TOP = 10
FOR_QUERY = ("captions", "top_k", "text", "picture")
FOR_FOUND = ("query", "near_duplicates", "where", "format", "out", *FOR_QUERY)

Groups = Sequence[Sequence[Match]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit search",
        description="Find pictures, or captions, in a database of vitkit index: by a text, or by a picture. "
        "With --near-duplicates and no query: the groups of pictures that are nearly the same.",
    )
    parser.add_argument("db", type=Path, help="the database")
    parser.add_argument("query", nargs="?", help="a picture file that exists, else a text, such as 'a red heart'")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--text", action="store_true", help="the query is a text, also where a file is called so")
    kind.add_argument("--picture", action="store_true", help="the query is a picture file")
    parser.add_argument("--captions", action="store_true", help="find captions, not pictures")
    parser.add_argument("--top-k", type=int, metavar="K", help=f"at most (default: {TOP})")
    parser.add_argument(
        "--where",
        default="",
        metavar="SQL",
        help="only what this is true of, such as \"width > 500 and path like '%%cats%%'\"; columns: path, root, "
        "caption, width, height, size, mtime, hash",
    )
    parser.add_argument("--near-duplicates", action="store_true", help="of those that are nearly the same, only one")
    parser.add_argument(
        "--near",
        type=float,
        metavar="COSINE",
        help=f"from which on pictures are near-duplicates (default: {DUPLICATE}, as clip-retrieval has it)",
    )
    parser.add_argument("--unreadable", action="store_true", help="only list the files that could not be read, and why")
    parser.add_argument("--format", choices=SCREEN, help="on the screen (default: text)")
    parser.add_argument(
        "--out",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a new file: .txt, .json, .csv, .html (a page that holds its pictures), .png (a contact sheet); "
        "may be given several times",
    )
    parser.add_argument("--model", help="where the model is now, if not where it was")
    add_device(parser)
    options = parser.parse_intermixed_args(arguments)  # the query may stand behind the options

    checked(options)
    collection = Collection(options.db, options.model, device=options.device)
    if options.unreadable:
        lines = [f"{escape_path(str(one.file))}: {one.reason}" for one in collection.unreadable()]
        put("\n".join(lines) or "every file could be read", None)
        return 0
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as noted:
        groups = answer(collection, options)
    for note in noted:
        print(f"note: {note.message}", file=sys.stderr)
    title = options.query or f"near-duplicates in {options.db}"
    if not options.out:
        put(rendered(groups, options.format or "text", options.query is None), None)
    for out in options.out:
        match FORMATS[out.suffix]:
            case "html":
                gallery.write_html(title, groups, out)
            case "png":
                gallery.write_png(groups, out)
            case form:
                put(rendered(groups, form, options.query is None), out)
    return 0


def checked(options: argparse.Namespace) -> None:
    """Raises: ValueError that says all that is wrong with what was asked."""
    rules = {
        "query must be given, unless --near-duplicates or --unreadable is": (
            options.query is not None or options.near_duplicates or options.unreadable
        ),
        f"query must not be empty, got query={options.query!r}": options.query != "",
        f"query must be a picture file that exists, got query={options.query}; or say --text": (
            options.query is None or options.text or not called_picture(options) or exists(Path(options.query))
        ),
        f"near must be a cosine above 0 and at most 1, got near={options.near}": (
            options.near is None or 0 < options.near <= 1
        ),
        f"near must come with near-duplicates, got near={options.near}": options.near is None
        or options.near_duplicates,
        f"top-k must be at least 1, got top-k={options.top_k}": options.top_k is None or options.top_k >= 1,
    }
    if options.query is None and (given := named(options, FOR_QUERY)):
        rules[f"query must be given with {given}"] = False
    if options.unreadable and (given := named(options, FOR_FOUND)):
        rules[f"unreadable must be without {given}"] = False
    for out in options.out:
        rules[f"out must end in {', '.join(FORMATS)}, got out={out}"] = out.suffix in FORMATS
        rules[f"out must be a new file in a folder that exists, got out={out}; nothing is overwritten"] = (
            not out.exists() and out.parent.is_dir()
        )
    if wrong := [rule for rule, holds in rules.items() if not holds]:
        raise ValueError("; ".join(wrong))


def named(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Those that were given, as they are typed."""
    return ", ".join(name.replace("_", "-") for name in names if getattr(options, name))


def called_picture(options: argparse.Namespace) -> bool:
    """Whether the query is said to be a picture, or ends as only their files do."""
    return options.picture or os.path.splitext(options.query)[1].lower() in SUFFIXES


def answer(collection: Collection, options: argparse.Namespace) -> Groups:
    near = DUPLICATE if options.near is None else options.near
    if options.query is None:
        return collection.duplicates(near, where=options.where)
    path = Path(options.query)
    query = path if options.picture or (not options.text and exists(path)) else options.query
    top, near = options.top_k or TOP, near if options.near_duplicates else None
    return [collection.search(query, top, where=options.where, captions=options.captions, near=near)]


def exists(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text that is longer than any name
        return False


def rendered(groups: Groups, form: str, several: bool) -> str:
    """Args: several: whether there may be more groups than one, which JSON then has as a list of lists."""
    match form:
        case "json":
            found = [[record(one) for one in group] for group in groups]
            return json.dumps(found if several else found[0], indent=2, ensure_ascii=False)
        case "csv":
            rows = [(number, one) for number, group in enumerate(groups, 1) for one in group]
            values = ((f"{one.score:.6f}", one.file, one.caption, one.width, one.height) for _, one in rows)
            ends = ((len(one.also), number) for number, one in rows)
            return "\n".join(
                [
                    format_csv_row(COLUMNS),
                    *(format_csv_row([*row, *end]) for row, end in zip(values, ends, strict=True)),
                ]
            )
        case _:
            return "\n\n".join("\n".join(map(line, group)) for group in groups if group) or "nothing was found"


def line(found: Match) -> str:
    caption = found.caption.partition("\n")[0]
    more = f"  and {len(found.also)} near-duplicates" if found.also else ""
    return f"{found.score:6.3f}  {escape_path(str(found.file))}{f'  {caption}' if caption else ''}{more}"


def record(found: Match) -> dict[str, object]:
    held: dict[str, object] = {"score": round(found.score, 6), "file": str(found.file), "caption": found.caption}
    held |= {"width": found.width, "height": found.height}
    return held | ({"also": [record(one) for one in found.also]} if found.also else {})


def put(text: str, out: Path | None) -> None:
    with open_output(out) as file:
        print(text, file=file)
