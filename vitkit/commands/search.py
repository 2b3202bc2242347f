"""`vitkit search`: find the pictures or captions of a database that are nearest to texts or pictures."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vitkit.commands.options import STDIN, add_device, add_overwrite, read_stdin_lines
from vitkit.data.sources.source import SUFFIXES, holds_image
from vitkit.retrieval import gallery
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.query import Match, MatchGroup
from vitkit.retrieval.scan import escape_path
from vitkit.support.errors import escape_controls, format_count
from vitkit.support.files import require_new
from vitkit.support.output import format_csv_row, open_output

FORMATS = {".txt": "text", ".json": "json", ".csv": "csv", ".html": "html", ".png": "png"}
SCREEN = ("text", "json", "csv")
COLUMNS = ["score", "file", "caption", "width", "height", "also", "group"]

TOP = 10
NOTHING = "nothing was found"
QUERY_OPTIONS = ("captions", "top_k", "text", "picture")
MATCH_OPTIONS = ("query", "near_duplicates", "where", "format", "out", *QUERY_OPTIONS)

Groups = Sequence[MatchGroup]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit search",
        description="Find the pictures, or captions, of a database that are nearest to texts or pictures. "
        "With --near-duplicates and no query: list the groups of identical files and of near-duplicates.",
    )
    parser.add_argument("db", type=Path, help="a database of vitkit index")
    parser.add_argument(
        "query",
        nargs="*",
        help="an existing picture file, else a text, such as 'a red heart'; several queries, or - for a list on stdin, "
        "have a table each",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--text", action="store_true", help="the query is a text, even if a file has that name")
    kind.add_argument("--picture", action="store_true", help="the query is a picture file")
    parser.add_argument("--captions", action="store_true", help="find captions, not pictures")
    parser.add_argument("--top-k", type=int, metavar="K", help=f"number of matches (default: {TOP})")
    parser.add_argument(
        "--where",
        default="",
        metavar="SQL",
        help="a condition on the matches, such as \"width > 500 and path like '%%cats%%'\"; columns: path, root, "
        "caption, width, height, size, mtime, hash",
    )
    parser.add_argument(
        "--near-duplicates", action="store_true", help="show one picture of each group of near-duplicates"
    )
    parser.add_argument(
        "--near",
        type=float,
        metavar="COSINE",
        help="least cosine similarity of near-duplicates to the one that is kept (default: 1 minus a twentieth of the "
        "median distance, 1 - cosine, from a picture of the collection to its tenth neighbour)",
    )
    parser.add_argument(
        "--unreadable", action="store_true", help="only list the files that could not be read, with the reasons"
    )
    parser.add_argument("--format", choices=SCREEN, help="of the output on the screen (default: text)")
    parser.add_argument(
        "--out",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a new file: .txt, .json, .csv, .html (a page with its pictures), .png (a contact sheet); "
        "may be given several times",
    )
    add_overwrite(parser)
    parser.add_argument("--model", help="the place of the model, if it was moved")
    add_device(parser)
    options = parser.parse_intermixed_args(arguments)  # the query may follow the options

    several = len(options.query) > 1 or STDIN in options.query
    if STDIN in options.query:
        options.query = [query for name in options.query for query in (read_stdin_lines() if name == STDIN else [name])]
        if not options.query:
            raise ValueError("query must be given on standard input, one a line, got none")
    check_options(options)
    collection = Collection(options.db, options.model, device=options.device)
    if options.unreadable:
        lines = [f"{escape_path(str(item.file))}: {item.reason}" for item in collection.unreadable()]
        write_text("\n".join(lines) or "every file could be read", None)
        return 0
    groups = find_groups(collection, options, several)
    title = f"{format_count(len(groups), 'queries')} in {options.db}" if several else "".join(options.query)
    title = title or f"near-duplicates in {options.db}"
    if not options.out:
        write_text(format_matches(groups, options.format or "text", not options.query), None)
    for out in options.out:
        match FORMATS[out.suffix]:
            case "html":
                gallery.write_html(title, groups, out)
            case "png":
                gallery.write_png(groups, out)
            case form:
                write_text(format_matches(groups, form, not options.query), out)
        count = format_count(sum(len(group.matches) for group in groups), "matches")
        print(escape_controls(f"written to {out}: {count}"), file=sys.stderr)
    return 0


def check_options(options: argparse.Namespace) -> None:
    """Raise a ValueError that lists all invalid options."""
    rules = {
        "query must be given, unless --near-duplicates or --unreadable is": (
            options.query or options.near_duplicates or options.unreadable
        ),
        **{rule: holds for query in options.query for rule, holds in make_query_rules(query, options).items()},
        f"near must be a cosine above 0 and at most 1, got near={options.near}": (
            options.near is None or 0 < options.near <= 1
        ),
        f"near must come with near-duplicates, got near={options.near}": options.near is None
        or options.near_duplicates,
        f"top-k must be at least 1, got top-k={options.top_k}": options.top_k is None or options.top_k >= 1,
    }
    if not options.query and (given := list_given(options, QUERY_OPTIONS)):
        rules[f"query must be given with {given}"] = False
    if options.unreadable and (given := list_given(options, MATCH_OPTIONS)):
        rules[f"unreadable must be given without {given}"] = False
    for out in options.out:
        rules[f"out must end in {', '.join(FORMATS)}, got out={out}"] = out.suffix in FORMATS
    if wrong := [rule for rule, holds in rules.items() if not holds]:
        raise ValueError("; ".join(wrong))
    for out in options.out:
        require_new(out, options.overwrite)


def make_query_rules(query: str, options: argparse.Namespace) -> dict[str, bool]:
    """Return the rules of a query, and whether it keeps them."""
    existing = is_file(Path(query))
    return {
        f"query must not be empty, got query={query!r}": query != "",
        f"query must be a picture file that exists, got query={query}; or say --text": (
            options.text or existing or not names_picture(query, options)
        ),
        f"query must be a picture or a text, got query={query}, a file that is no picture; or say --text": (
            options.text or not existing or names_picture(query, options) or holds_image(query)
        ),
    }


def list_given(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Return those of the options that were given, as they are typed."""
    return ", ".join(name.replace("_", "-") for name in names if getattr(options, name))


def names_picture(query: str, options: argparse.Namespace) -> bool:
    """Return whether --picture was given, or the query has the suffix of a picture file."""
    return options.picture or os.path.splitext(query)[1].lower() in SUFFIXES


def find_groups(collection: Collection, options: argparse.Namespace, several: bool) -> Groups:
    """Return the groups of duplicates, or the matches of each query, which is named if there may be several."""
    near = options.near
    if options.near_duplicates and near is None:
        near = collection.choose_near()
        print(f"near-duplicates have a cosine of {near:.4f} or more (--near), from this collection", file=sys.stderr)
    if not options.query:
        return collection.duplicates(near, where=options.where)
    groups = []
    for name in options.query:
        path = Path(name)
        query = path if options.picture or (not options.text and is_file(path)) else name
        matches = collection.search(
            query, options.top_k or TOP, where=options.where, captions=options.captions, near=near
        )
        groups.append(MatchGroup(matches, query=name if several else ""))
    return groups


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text longer than any file name
        return False


def format_matches(groups: Groups, form: str, duplicates: bool) -> str:
    """Return matches as text, JSON or CSV, which name the query if there may be several.

    Args: duplicates: the groups are of duplicates, with their kinds and lowest scores in JSON and CSV.
    """
    several = any(group.query for group in groups)
    match form:
        case "json":
            nested = duplicates or several
            records = [make_group_record(group) for group in groups] if nested else make_records(groups[0].matches)
            return json.dumps(records, indent=2, ensure_ascii=False)
        case "csv":
            columns = [*COLUMNS, *(["kind", "lowest"] if duplicates else ["query"] if several else [])]
            rows = (
                (f"{match.score:.6f}", match.file, match.caption, match.width, match.height, len(match.also), number)
                + ((group.kind, f"{group.lowest:.6f}") if duplicates else (group.query,) if several else ())
                for number, group in enumerate(groups, 1)
                for match in group.matches
            )
            return "\n".join([format_csv_row(columns), *map(format_csv_row, rows)])
        case _:
            blocks = (
                [*filter(None, [escape_path(group.title)]), *([*map(format_line, group.matches)] or [NOTHING])]
                for group in groups
            )
            return "\n\n".join(map("\n".join, blocks)) or NOTHING


def format_line(match: Match) -> str:
    caption = match.caption.partition("\n")[0]
    also = f"  and {format_count(len(match.also), 'near-duplicates')}" if match.also else ""
    return f"{match.score:6.3f}  {escape_path(str(match.file))}{f'  {caption}' if caption else ''}{also}"


def make_group_record(group: MatchGroup) -> dict[str, object]:
    if group.query:
        return {"query": group.query, "matches": make_records(group.matches)}
    return {"kind": group.kind, "lowest": round(group.lowest, 6), "matches": make_records(group.matches)}


def make_records(matches: Sequence[Match]) -> list[dict[str, object]]:
    return [make_record(match) for match in matches]


def make_record(match: Match) -> dict[str, object]:
    """Return a match as an object for JSON."""
    record: dict[str, object] = {"score": round(match.score, 6), "file": str(match.file), "caption": match.caption}
    record |= {"width": match.width, "height": match.height}
    return record | ({"also": make_records(match.also)} if match.also else {})


def write_text(text: str, out: Path | None) -> None:
    with open_output(out) as file:
        print(text, file=file)
