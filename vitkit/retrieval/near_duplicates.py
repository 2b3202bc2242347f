"""Groups of identical files and of near-duplicates in a whole collection, exact. N pictures, E embedding."""

import os
from collections import defaultdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from vitkit.retrieval.approximate import PICTURES, ROUNDING
from vitkit.retrieval.database_errors import explain_condition_errors
from vitkit.retrieval.query import COLUMNS, Match, MatchGroup, check_near, join_conditions, normalise_vectors
from vitkit.retrieval.store import VECTOR, Store, get_vectors

PAIRS = 2**25  # compared at a time: 0.2 GB
SAMPLE = 1024  # pictures whose neighbours are measured: their median distance has a standard error of a few percent
# cleanlab's Datalab calls a row a near-duplicate within 0.13 of the median distance to the nearest neighbour
# (https://docs.cleanlab.ai, NearDuplicateIssueManager). If most pictures have a copy, that is the distance of copies,
# so the 10th neighbour is measured, which is 2 to 3 times as far for emoji in the models of two configs.
NEIGHBOUR, SHARE = 10, 0.05


def choose_near(store: Store, device: str | torch.device = "cpu") -> float:
    """Return the least cosine of near-duplicates for a collection, from the distances between its pictures.

    A near-duplicate is closer than SHARE of the median distance (1 - cosine) from a picture to its NEIGHBOUR-th nearest
    one. Equal files count once. Of fewer pictures the farthest one is taken; a picture alone gives 1.
    """
    table = store.items.search().where(PICTURES).select(["hash", VECTOR]).limit(None).to_arrow()
    rows = [*{key: row for row, key in enumerate(table["hash"].to_pylist())}.values()]  # one of each content
    vectors = torch.from_numpy(normalise_vectors(get_vectors(table)[rows])).to(device)
    return 1 - SHARE * measure_distance(vectors)


def measure_distance(vectors: Float[Tensor, "N E"]) -> float:
    """Return the median distance from a row to its NEIGHBOUR-th nearest one, over a sample of rows."""
    rank = min(NEIGHBOUR, len(vectors) - 1)  # a row itself has rank 0
    if rank < 1:
        return 0.0
    picks = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    sample = vectors[picks.to(vectors.device)]
    nearest = sample[:, :0]
    for block in vectors.split(PAIRS // SAMPLE):
        nearest = torch.cat([nearest, sample @ block.T], dim=1)
        nearest = nearest.topk(min(rank + 1, nearest.shape[1])).values
    return (1 - nearest[:, rank]).median().clamp(min=0).item()


def group_duplicates(
    store: Store, near: int | float, where: str = "", device: str | torch.device = "cpu"
) -> list[MatchGroup]:
    """Return the groups of identical files, then those of near-duplicates, each the largest first.

    In a group the picture with the most pixels is first: the one to keep. Scores are cosines to it, of near-duplicates
    at least `near`. Of identical files the first alone may be in a group of near-duplicates. Every pair is compared:
    100,000 pictures take minutes on a processor.
    """
    check_near(near)
    with explain_condition_errors(where):
        query = store.items.search().where(join_conditions(PICTURES, where))
        table = query.select([*COLUMNS, "hash", VECTOR]).limit(None).to_arrow()
    vectors = torch.from_numpy(normalise_vectors(get_vectors(table))).to(device)
    rows = table.drop_columns([VECTOR]).to_pylist()
    copies: dict[str, list[int]] = defaultdict(list)
    for row in sorted(range(len(rows)), key=lambda row: (-rows[row]["width"] * rows[row]["height"], rows[row]["path"])):
        copies[rows[row]["hash"]].append(row)
    firsts = [files[0] for files in copies.values()]
    leaders = find_leaders(vectors[firsts], near)

    def make_group(kind: str, members: list[int]) -> MatchGroup:
        scores = (vectors[members] @ vectors[members[0]]).tolist()
        matches = [make_match(rows[row], score) for row, score in zip(members, scores, strict=True)]
        return MatchGroup([matches[0], *sorted(matches[1:], key=lambda match: (-match.score, match.path))], kind)

    identical = [make_group("identical files", files) for files in copies.values() if len(files) > 1]
    similar = [make_group("near-duplicates", [firsts[row] for row in members]) for members in leaders]
    return [
        group
        for groups in (identical, similar)
        for group in sorted(groups, key=lambda group: (-len(group.matches), group.matches[0].path))
    ]


def make_match(row: dict, score: float) -> Match:
    return Match(score, Path(os.fsdecode(row["file"])), *(row[name] for name in COLUMNS[1:]))


def find_leaders(vectors: Float[Tensor, "N E"], near: int | float) -> list[list[int]]:
    """Return groups of two and more rows, each a leader and the later rows with a cosine to it of at least `near`.

    A row joins the first leader that is so close, else it leads (leader clustering). Connected components would chain
    rows that have little in common.
    """
    free = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    groups: list[list[int]] = []
    count = max(1, PAIRS // max(1, len(vectors)))
    for start in tqdm(range(0, len(vectors), count), "compare", delay=1, disable=None, leave=False):
        close = (vectors[start : start + count] @ vectors[start:].T >= near - ROUNDING).triu(1)
        for row in close.any(dim=1).nonzero().flatten().tolist():
            members = close[row] & free[start:]
            if free[start + row] and members.any():
                free[start:][members] = False
                groups.append([start + row, *(start + members.nonzero().flatten()).tolist()])
    return groups
