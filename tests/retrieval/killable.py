"""Index a folder again and again in processes that may be killed: `killable.py FOLDER`.

A line on stdin names a database: a child process prints its id and indexes into it. The next line says that the child
was killed. Imports are done once, in the parent.
"""

import os
import runpy
import sys
from pathlib import Path

import torch

from vitkit.retrieval.collection import Collection
from vitkit.retrieval.writer import IndexReading


def index(folder: str, db: str) -> None:
    import lancedb  # noqa: F401  (not in the parent: its threads do not survive a fork)

    print(os.getpid(), flush=True)
    Collection(db, embedder, device="cpu").index(folder, reading=IndexReading(batch=8, commit=16))


if __name__ == "__main__":
    torch.set_num_threads(1)
    embedder = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["embedder"]()
    embedder.embed_text("a first call, for its imports")
    for line in sys.stdin:
        if not (child := os.fork()):
            index(sys.argv[1], line.strip())
            os._exit(0)
        sys.stdin.readline()  # until then the child keeps its id
        os.waitpid(child, 0)
        print("ended", flush=True)
