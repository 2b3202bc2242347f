"""`vitkit index`: embed the pictures of folders and other sources into a database, and keep it up to date."""

import argparse
import sys
from pathlib import Path

from vitkit.commands.options import add_batch, add_columns, add_device, add_exclude, add_workers
from vitkit.retrieval.approximate import MIN_RECALL, MIN_ROWS, Index
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.scan import escape_path
from vitkit.retrieval.update import IndexSummary
from vitkit.retrieval.writer import IndexReading, embed_here
from vitkit.support.errors import escape_controls, format_count

MAX_LINES = 10  # of unreadable files, and of notes


def main(arguments: list[str]) -> int:
    defaults = IndexReading()
    parser = argparse.ArgumentParser(
        "vitkit index",
        description="Embed pictures and their captions into a database for vitkit search: of folders, where the text "
        "file beside a picture (x.txt beside x.jpg) holds a caption on each line, or of tables, shards and data sets. "
        "A later call reads only new and changed files and removes deleted ones; a stopped or killed one is continued.",
    )
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="SOURCE",
        help="a folder of pictures, at any depth, or another source, named as for --data.train",
    )
    parser.add_argument("--db", type=Path, required=True, metavar="FOLDER", help="the database to create or update")
    parser.add_argument(
        "--forget",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="first remove the pictures of these folders from the database; the files themselves stay as they are",
    )
    parser.add_argument("--model", help="a CLIP: its folder, hf:NAME or openclip:NAME (default: that of the database)")
    parser.add_argument("--rehash", action="store_true", help="read also files whose size and time did not change")
    add_columns(parser, None, "TEXT")
    add_exclude(parser)
    add_batch(parser, defaults.batch)
    add_workers(parser)
    parser.add_argument("--commit", type=int, default=defaults.commit, help="files in a commit (default: %(default)s)")
    add_device(parser)
    parser.add_argument(
        "--devices",
        type=int,
        default=1,
        help="number of devices to embed on, each with its own process (default: %(default)s)",
    )
    parser.add_argument(
        "--approximate-above",
        type=int,
        default=MIN_ROWS,
        metavar="ROWS",
        help="build an index for approximate search from this number of pictures and captions (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.devices < 1:
        raise ValueError(f"devices must be at least 1, got devices={options.devices}")
    if not (options.folders or options.forget):
        raise ValueError("folders must be at least one, got none")
    embed = embed_here
    if options.devices > 1:
        from vitkit.fit.distributed_embedding import (
            DistributedEmbedding,  # one process does not need Lightning, which takes seconds to import
        )

        embed = DistributedEmbedding(options.devices)

    collection = Collection(options.db, options.model, device=options.device)
    if options.forget:
        print(f"{format_count(collection.forget(options.forget), 'files')} removed from the database")
    if not options.folders:
        return 0
    summary = collection.index(
        options.folders,
        rehash=options.rehash,
        reading=IndexReading(options.batch, options.workers, options.commit),
        embed=embed,
        above=options.approximate_above,
        columns=options.columns and tuple(options.columns),
        exclude=options.exclude,
    )
    print(format_summary(summary))
    print(f"{format_count(len(collection), 'pictures')} in {options.db}")
    if summary.approximate:
        print(format_index(summary.approximate))
    for line in format_notes(collection, summary):
        print(escape_controls(line), file=sys.stderr)
    return 1 if summary.omissions.unreadable else 0


def format_summary(summary: IndexSummary) -> str:
    captions = f" and {format_count(summary.captions, 'captions')}" if summary.captions else ""
    return (
        f"{format_count(summary.encoded, 'pictures')}{captions} embedded, {summary.reused:,} known by their content, "
        f"{summary.unchanged:,} unchanged, {summary.removed:,} removed, in {summary.seconds:.1f} s"
    )


def format_index(index: Index) -> str:
    lines = [f"index for approximate search of {format_count(index.rows, 'rows')}, built in {index.seconds:.1f} s"]
    for kind, measurement in index.measurements.items():
        lines.append(
            f"  by {kind}: recall@10 {measurement.recall:.3f} with {measurement.probes} probes, "
            f"{measurement.milliseconds:.1f} ms a query, exact search {measurement.exact_milliseconds:.1f} ms"
            + (f"; below {MIN_RECALL}, so exact search is used" if measurement.recall < MIN_RECALL else "")
        )
    return "\n".join(lines)


def format_notes(collection: Collection, summary: IndexSummary) -> list[str]:
    """Return the lines about captions that were cut, files that could not be read, and the like."""
    lines = [f"note: {note}" for note in summary.notes[:MAX_LINES]]
    if len(summary.notes) > MAX_LINES:
        lines.append(f"note: and {len(summary.notes) - MAX_LINES:,} more like the last")
    if summary.cut:
        lines.append(f"note: {format_count(summary.cut, 'captions')} longer than the model reads, truncated")
    omissions = summary.omissions
    if summary.unreadable:
        omissions.unreadable += [f"{escape_path(str(item.file))}: {item.reason}" for item in collection.unreadable()]
    total = len(collection) + len(omissions.unreadable)
    hint = f"; vitkit search {collection.path} --unreadable lists them"
    return lines + omissions.format(total, "files", MAX_LINES, hint if len(omissions.unreadable) > MAX_LINES else "")
