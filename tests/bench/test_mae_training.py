import json
from itertools import product

import pytest
import torch

from vitkit.cli import main

pytest.importorskip("transformers")
pytest.importorskip("lightly")

from vitkit.bench import mae_training
from vitkit.bench.mae_training import build_lightly_mae, build_mae, build_transformers_mae
from vitkit.bench.peers import DTYPES


@pytest.mark.parametrize("build_peer", [build_transformers_mae, build_lightly_mae])
def test_models_train_equally_many_parameters(build_peer):
    with torch.device("meta"):
        counts = [
            {name: p.numel() for name, p in build("ti").named_parameters() if p.requires_grad}
            for build in (build_mae, build_peer)
        ]
    learned = {name: size for name, size in counts[1].items() if name.endswith("vit.pos_embed")}
    # lightly's encoder learns its positions; and the encoder's norm, transformers' twice
    assert abs(sum(counts[0].values()) - sum(counts[1].values()) + sum(learned.values())) <= 1000


@pytest.mark.parametrize("build", [build_mae, build_transformers_mae, build_lightly_mae])
def test_initial_loss_is_about_the_variance_of_the_images(build):
    torch.manual_seed(0)
    with torch.no_grad():
        loss = build("ti")(torch.randn(2, 3, 224, 224)).item()
    assert 0.9 < loss < 3


@pytest.mark.soak
def test_table_has_a_row_for_each_peer_and_dtype(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(mae_training, "PIXELS", 32)
    path = tmp_path / "rows.json"
    options = ["--batch", "1", "--pairs", "1", "--threads", "1", "--dtype", *DTYPES, "--json", str(path)]
    assert main(["bench", "--pretraining", "ti", *options]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["dtype"], row["peer"]) for row in rows] == [*product(DTYPES, ("transformers", "lightly"))]
    assert all(min(row["seconds"]) > 0 and min(row["memory"]) > 1e7 for row in rows)
    assert "lightly" in capfd.readouterr().out
