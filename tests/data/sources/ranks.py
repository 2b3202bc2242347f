"""One rank of several processes, `ranks.py SOURCE RANK WORLD PORT`: prints the validation samples that it sees."""

import json
import sys
from hashlib import blake2b

import torch
from torch import distributed

from vitkit.data.images import Images
from vitkit.data.preprocess import Preprocess


def seen(source: str, workers: int) -> list[tuple[int, str]]:
    """Each validation sample and a digest of its numbers."""
    data = Images(source, preprocess=Preprocess((7, 9), (0.5,) * 3, (0.5,) * 3), batch=4, workers=workers)
    found = []
    for batch in data.val_dataloader():
        for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
            found.append((index, blake2b(image.numpy().tobytes(), digest_size=8).hexdigest()))
    return found


if __name__ == "__main__":
    source, rank, world, port = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    print(json.dumps(seen(source, workers=2)))
    distributed.destroy_process_group()
