import json
from itertools import product

import pytest
import torch

from vitkit.cli import main

pytest.importorskip("transformers")
pytest.importorskip("lightly")

from vitkit.bench import mae_training
from vitkit.bench.mae_training import lightly, ours, transformers
from vitkit.bench.peers import DTYPES


@pytest.mark.parametrize("peer", [transformers, lightly])
def test_a_peer_trains_as_many_numbers(peer):
    with torch.device("meta"):
        counts = [
            {name: p.numel() for name, p in make("ti").named_parameters() if p.requires_grad} for make in (ours, peer)
        ]
    learned = {name: size for name, size in counts[1].items() if name.endswith("vit.pos_embed")}
    # lightly's encoder learns its positions; and the encoder's norm, transformers' twice
    assert abs(sum(counts[0].values()) - sum(counts[1].values()) + sum(learned.values())) <= 1000


@pytest.mark.parametrize("peer", [ours, transformers, lightly])
def test_a_peer_starts_at_the_error_of_knowing_nothing(peer):
    torch.manual_seed(0)
    with torch.no_grad():
        loss = peer("ti")(torch.randn(2, 3, 224, 224)).item()
    assert 0.9 < loss < 3


def test_the_table_has_a_row_for_each_peer_in_each_dtype(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(mae_training, "PIXELS", 32)
    path = tmp_path / "rows.json"
    options = ["--batch", "1", "--pairs", "1", "--threads", "1", "--dtype", *DTYPES, "--json", str(path)]
    assert main(["bench", "--pretraining", "ti", *options]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["dtype"], row["peer"]) for row in rows] == [*product(DTYPES, ("transformers", "lightly"))]
    assert all(min(row["seconds"]) > 0 and min(row["memory"]) > 1e7 for row in rows)
    assert "lightly" in capfd.readouterr().out
