"""Index a folder on several devices: `indexing.py FOLDER DB DEVICES`."""

import runpy
import sys
from pathlib import Path

import torch

from vitkit.fit.distributed_embedding import DistributedEmbedding
from vitkit.retrieval.collection import Collection
from vitkit.retrieval.writer import IndexReading

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, db, devices = sys.argv[1:]
    embedder = runpy.run_path(str(Path(__file__).with_name("conftest.py")))["embedder"]()
    summary = Collection(db, embedder, device="cpu").index(
        folder, reading=IndexReading(batch=8, commit=16), embed=DistributedEmbedding(int(devices))
    )
    print(*summary[:7])
