"""Groups of near-duplicates in a whole collection, exact. N pictures, E embedding."""

import os
from collections import defaultdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from vitkit.retrieval.approximate import PICTURES, ROUNDING
from vitkit.retrieval.database_errors import asking
from vitkit.retrieval.query import COLUMNS, DUPLICATE, Match, full, narrowed
from vitkit.retrieval.store import VECTOR, Store, matrix

ROWS = 2048  # compared at a time


def group_duplicates(
    store: Store, near: int | float = DUPLICATE, where: str = "", device: str | torch.device = "cpu"
) -> list[list[Match]]:
    """Pictures that a chain of pairs joins, each pair with a cosine of at least `near`; the largest groups first.

    In a group the picture with the most pixels is first, and scores are cosines to it. Every pair is compared: 100,000
    pictures take minutes on a processor.
    """
    if not 0 < near <= 1:
        raise ValueError(f"near must be a cosine above 0 and at most 1, got near={near}")
    with asking(where):
        asked = store.items.search().where(narrowed(PICTURES, where))
        table = asked.select([*COLUMNS, VECTOR]).limit(None).to_arrow()
    vectors = torch.from_numpy(full(matrix(table))).to(device)
    rows = table.drop_columns([VECTOR]).to_pylist()
    held = []
    for members in joined(vectors, near):
        members.sort(key=lambda row: (-rows[row]["width"] * rows[row]["height"], rows[row]["path"]))
        scores = (vectors[members] @ vectors[members[0]]).tolist()
        held.append([found(rows[row], score) for row, score in zip(members, scores, strict=True)])
    return sorted(held, key=lambda group: (-len(group), group[0].path))


def found(row: dict, score: float) -> Match:
    return Match(score, Path(os.fsdecode(row["file"])), *(row[name] for name in COLUMNS[1:]))


def joined(vectors: Float[Tensor, "N E"], near: int | float) -> list[list[int]]:
    """The connected components of two and more."""
    group = torch.arange(len(vectors), device=vectors.device)  # the first row of each row's component, so far
    for start in tqdm(range(0, len(vectors), ROWS), "comparing", delay=1, disable=None, leave=False):
        close = (vectors[start : start + ROWS] @ vectors[start:].T >= near - ROUNDING).triu(1)
        for row in close.any(dim=1).nonzero().flatten().tolist():
            touched = torch.cat([group[start:][close[row]], group[start + row, None]]).unique()
            if len(touched) > 1:
                group[torch.isin(group, touched)] = touched[0]
    members: dict[int, list[int]] = defaultdict(list)
    for row, first in enumerate(group.tolist()):
        members[first].append(row)
    return [rows for rows in members.values() if len(rows) > 1]
