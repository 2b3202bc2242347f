import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.retrieval.collection import Collection
from vitkit.retrieval.writer import IndexReading

RETRIEVAL = Path(__file__).parent.parent / "retrieval"


@pytest.mark.soak
@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    """New, changed and broken files; parts of unequal size; captions that both ranks have."""
    made = runpy.run_path(str(RETRIEVAL / "conftest.py"))
    root = tmp_path / "pictures"

    def index(devices: int) -> list[str]:
        db = tmp_path / f"db{devices}"
        if devices == 1:  # here, where all is imported
            collection = Collection(db, made["embedder"](), device="cpu")
            done = collection.index(root, reading=IndexReading(batch=8, commit=16))
            return [str(number) for number in done[:7]]
        command = [sys.executable, RETRIEVAL / "indexing.py", root, db, str(devices)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        return ran.stdout.splitlines()[-1].split()

    def stored(devices: int) -> dict[tuple[str, int], tuple[str, list[float]]]:
        table = Collection(tmp_path / f"db{devices}", made["embedder"]()).store.items
        rows = table.search().select(["path", "line", "hash", "vector"]).limit(None).to_arrow().to_pylist()
        found = {(row["path"], row["line"]): (row["hash"], row["vector"]) for row in rows}
        assert len(found) == len(rows)
        return found

    for seed in range(37):
        made["draw_stripes"](root / f"{seed}.png", seed)
        (root / f"{seed}.txt").write_text(f"number {seed}\nshared\n")
        made["make_old"](root / f"{seed}.txt")
    (root / "broken.png").write_bytes(b"")
    assert index(1) == ["37", "42", "0", "0", "0", "0", "1"]  # a shared caption once for each of five batches
    for seed in range(0, 37, 2):
        made["draw_stripes"](root / f"{seed}.png", 100 + seed)
    (root / "1.png").unlink()
    shutil.copytree(tmp_path / "db1", tmp_path / "db2")
    one, two = index(1), index(2)
    assert one[0] == two[0] == "19" and one[2:] == two[2:] and one[5:] == ["1", "1"]
    ours, theirs = stored(1), stored(2)
    assert len(ours) == 36 * 3 and ours.keys() == theirs.keys()
    for key, (hashed, vector) in ours.items():
        assert hashed == theirs[key][0] and vector == pytest.approx(theirs[key][1], abs=2e-3)
