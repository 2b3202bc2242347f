"""Index a folder in a process that may be killed: `indexing.py FOLDER DB DEVICES`; it says when it begins."""

import runpy
import sys
from pathlib import Path

import lancedb  # noqa: F401  (so that it is there before anything begins)
import torch

from vitkit.retrieval.collection import Collection
from vitkit.retrieval.writer import Reading, here

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, db, devices = sys.argv[1:]
    embedder = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["embedder"]()
    embed = here
    if int(devices) > 1:
        from vitkit.tasks.embed import Ranks

        embed = Ranks(int(devices))
    embedder.text("what this imports is not what is to be killed")
    print("begins", flush=True)
    found = Collection(db, embedder, device="cpu").index(folder, reading=Reading(batch=8, commit=16), embed=embed)
    print(*found[:7])
