"""One rank of several processes, `ranks.py SOURCE RANK WORLD PORT`: prints the validation samples that it reads."""

import json
import sys
from hashlib import blake2b

import torch
from torch import distributed

from vitkit.data.images import Images
from vitkit.data.preprocess import Preprocess


def read_samples(source: str, workers: int) -> list[tuple[int, str]]:
    """Return each validation sample and a digest of its tensor."""
    data = Images(source, preprocess=Preprocess((7, 9), (0.5,) * 3, (0.5,) * 3), batch=4, workers=workers)
    samples = []
    for batch in data.val_dataloader():
        for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
            samples.append((index, blake2b(image.numpy().tobytes(), digest_size=8).hexdigest()))
    return samples


if __name__ == "__main__":
    source, rank, world, port = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    print(json.dumps(read_samples(source, workers=2)))
    distributed.destroy_process_group()
