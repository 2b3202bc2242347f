"""`vitkit index`: embed the pictures of folders and of other sources, and keep that up to date."""

import argparse
import sys
from pathlib import Path

from vitkit.commands.options import add_batch, add_device, add_workers
from vitkit.retrieval.approximate import GOAL, ROWS, Index
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.scan import escape_path
from vitkit.retrieval.update import Indexed
from vitkit.retrieval.writer import IndexReading, here

SHOWN = 10  # lines about files that cannot be read, and as many notes


def main(arguments: list[str]) -> int:
    defaults = IndexReading()
    parser = argparse.ArgumentParser(
        "vitkit index",
        description="Embed the pictures below folders, and the captions in text files beside them (x.jpg and x.txt, "
        "one a line), or those of tables, shards and data sets, into a database that vitkit search reads. Called "
        "again, it looks at what is new, changed or gone; stopped, even killed, it goes on where it was.",
    )
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="SOURCE",
        help="a folder of pictures, at any depth, or what else --data.train takes",
    )
    parser.add_argument("--db", type=Path, required=True, metavar="FOLDER", help="the database, new or to be updated")
    parser.add_argument(
        "--forget",
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="first take out what was indexed below; the folder itself, if it is still there, stays as it is",
    )
    parser.add_argument("--model", help="a CLIP: its folder, hf:NAME or openclip:NAME (default: as the last time)")
    parser.add_argument("--rehash", action="store_true", help="read also files whose size and time did not change")
    add_batch(parser, defaults.batch)
    add_workers(parser)
    parser.add_argument("--commit", type=int, default=defaults.commit, help="files a commit (default: %(default)s)")
    add_device(parser)
    parser.add_argument(
        "--devices",
        type=int,
        default=1,
        help="processes that embed, each on a device of its own (default: %(default)s)",
    )
    parser.add_argument(
        "--approximate-above",
        type=int,
        default=ROWS,
        metavar="ROWS",
        help="from so many pictures and captions on, build an index for approximate search (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.devices < 1:
        raise ValueError(f"devices must be at least 1, got devices={options.devices}")
    if not (options.folders or options.forget):
        raise ValueError("folders must be at least one, got none")
    embed = here
    if options.devices > 1:
        from vitkit.fit.distributed_embedding import Ranks  # Lightning takes seconds, which one process does not need

        embed = Ranks(options.devices)

    collection = Collection(options.db, options.model, device=options.device)
    if options.forget:
        print(f"{collection.forget(options.forget):,} files forgotten")
    if not options.folders:
        return 0
    done = collection.index(
        options.folders,
        rehash=options.rehash,
        reading=IndexReading(options.batch, options.workers, options.commit),
        embed=embed,
        above=options.approximate_above,
    )
    print(told(done))
    print(f"{len(collection):,} pictures in {options.db}")
    if done.approximate:
        print(measured(done.approximate))
    for line in complaints(collection, done):
        print(line, file=sys.stderr)
    return 0


def told(done: Indexed) -> str:
    captions = f" and {done.captions:,} captions" if done.captions else ""
    return (
        f"{done.encoded:,} pictures{captions} embedded, {done.reused:,} known by their content, "
        f"{done.unchanged:,} unchanged, {done.removed:,} removed, in {done.seconds:.1f} s"
    )


def measured(index: Index) -> str:
    lines = [f"index for approximate search of {index.rows:,} rows, built in {index.seconds:.1f} s"]
    for kind, found in index.measured.items():
        lines.append(
            f"  by {kind}: recall of the nearest ten {found.recall:.3f} with {found.probes} probes, "
            f"{found.took:.1f} ms against {found.exact:.1f} ms"
            + (f"; exact search is taken, for want of {GOAL}" if found.recall < GOAL else "")
        )
    return "\n".join(lines)


def complaints(collection: Collection, done: Indexed) -> list[str]:
    lines = [f"note: {note}" for note in done.notes[:SHOWN]]
    if len(done.notes) > SHOWN:
        lines.append(f"note: and {len(done.notes) - SHOWN:,} more like the last")
    if done.cut:
        lines.append(f"note: {done.cut:,} captions were longer than the model reads; their ends were cut off")
    if done.unreadable:
        failed = collection.unreadable()
        done.omissions.unreadable += [f"{escape_path(str(one.file))}: {one.reason}" for one in failed]
    total = len(collection) + len(done.omissions.unreadable)
    listed = f"; vitkit search {collection.path} --unreadable lists them"
    more = listed if len(done.omissions.unreadable) > SHOWN else ""
    return lines + done.omissions.format(total, "files", SHOWN, more)
