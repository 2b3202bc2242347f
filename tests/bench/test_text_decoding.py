import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from vitkit.cli import main

pytest.importorskip("transformers")

from vitkit.bench import text_decoding
from vitkit.bench.text_decoding import build_decoders, write_uncached, write_vitkit
from vitkit.models.sizes import Size


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(text_decoding.SIZES, "ti", Size(32, 2, 2))
    for name, value in {"VOCABULARY": 64, "CONTEXT": 32, "NEW": 4, "LONG": 8, "CLIP_VOCABULARY": 64}.items():
        monkeypatch.setattr(text_decoding, name, value)


def test_models_have_the_same_weights_and_write_the_same() -> None:
    ours, peer = build_decoders("ti")
    ids = torch.randint(64, (3, 16))
    with torch.no_grad():
        assert_close(ours.eval()(ids), peer.eval()(ids).logits, rtol=0, atol=1e-5)
    assert torch.equal(write_vitkit(ours, ids, 4, 1), write_uncached(ours, ids, 4))


def test_table_has_a_row_for_each_peer_and_step(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    options = ["--batch", "2", "--pairs", "1", "--threads", "1", "--dtype", "float32", "bf16-mixed"]
    assert main(["bench", "--decoder", "ti", *options, "--json", str(path)]) == 0
    rows = [(row["dtype"], row["step"], row["peer"]) for row in json.loads(path.read_text())["rows"]]
    assert rows == [
        ("float32", "greedy, batch 1", "transformers"),
        ("float32", "beam 4, batch 1", "transformers"),
        ("float32", "greedy, batch 16", "transformers"),
        ("float32", "beam 4, batch 16", "transformers"),
        ("float32", "greedy, batch 1", "uncached"),
        ("float32", "greedy, batch 16", "uncached"),
        ("float32", "greedy, batch 1", "uncached"),
        ("float32", "train, batch 2", "transformers"),
        ("float32", "loss", "naive"),
        ("bf16-mixed", "train, batch 2", "transformers"),
    ]
    assert "uncached" in capfd.readouterr().out
