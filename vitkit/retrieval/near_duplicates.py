"""Groups of near-duplicates in a whole collection, exact. N pictures, E embedding."""

import os
from collections import defaultdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from vitkit.retrieval.approximate import PICTURES, ROUNDING
from vitkit.retrieval.database_errors import explain_condition_errors
from vitkit.retrieval.query import COLUMNS, NEAR_DUPLICATE, Match, join_conditions, normalise_vectors
from vitkit.retrieval.store import VECTOR, Store, get_vectors

ROWS = 2048  # compared at a time


def group_duplicates(
    store: Store, near: int | float = NEAR_DUPLICATE, where: str = "", device: str | torch.device = "cpu"
) -> list[list[Match]]:
    """Return groups of near-duplicates, the largest first: chains of pairs with a cosine of at least `near`.

    In a group the picture with the most pixels is first, and scores are cosines to it. Every pair is compared: 100,000
    pictures take minutes on a processor.
    """
    if not 0 < near <= 1:
        raise ValueError(f"near must be a cosine above 0 and at most 1, got near={near}")
    with explain_condition_errors(where):
        query = store.items.search().where(join_conditions(PICTURES, where))
        table = query.select([*COLUMNS, VECTOR]).limit(None).to_arrow()
    vectors = torch.from_numpy(normalise_vectors(get_vectors(table))).to(device)
    rows = table.drop_columns([VECTOR]).to_pylist()
    groups = []
    for members in find_components(vectors, near):
        members.sort(key=lambda row: (-rows[row]["width"] * rows[row]["height"], rows[row]["path"]))
        scores = (vectors[members] @ vectors[members[0]]).tolist()
        groups.append([make_match(rows[row], score) for row, score in zip(members, scores, strict=True)])
    return sorted(groups, key=lambda group: (-len(group), group[0].path))


def make_match(row: dict, score: float) -> Match:
    return Match(score, Path(os.fsdecode(row["file"])), *(row[name] for name in COLUMNS[1:]))


def find_components(vectors: Float[Tensor, "N E"], near: int | float) -> list[list[int]]:
    """Return the connected components of two and more rows."""
    group = torch.arange(len(vectors), device=vectors.device)  # the first row of each row's component, so far
    for start in tqdm(range(0, len(vectors), ROWS), "compare", delay=1, disable=None, leave=False):
        close = (vectors[start : start + ROWS] @ vectors[start:].T >= near - ROUNDING).triu(1)
        for row in close.any(dim=1).nonzero().flatten().tolist():
            touched = torch.cat([group[start:][close[row]], group[start + row, None]]).unique()
            if len(touched) > 1:
                group[torch.isin(group, touched)] = touched[0]
    members: dict[int, list[int]] = defaultdict(list)
    for row, first in enumerate(group.tolist()):
        members[first].append(row)
    return [rows for rows in members.values() if len(rows) > 1]
