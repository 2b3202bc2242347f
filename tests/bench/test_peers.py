import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from vitkit.bench import machine_load
from vitkit.bench.machine_load import Usage
from vitkit.bench.peers import COLUMNS, Row, build_optimizer, compute_time_ratio, print_rows
from vitkit.bench.vit_steps import build_vits, parse_shape


def test_ratio_has_the_median_and_quartiles_of_its_pairs() -> None:
    ratio = compute_time_ratio([1.0, 2.0, 3.0, 4.0, 10.0], [1.0] * 5)
    assert (ratio.median, ratio.quartiles, ratio.pairs) == (3, (2, 4), (1, 2, 3, 4, 10))
    assert str(ratio) == " 3.00 (2.00-4.00)"
    assert compute_time_ratio([3.0], [2.0]).quartiles == (1.5, 1.5)


def test_column_titles_are_aligned_with_their_values() -> None:
    row = Row(
        *("ti/16@224", "bf16-mixed", 16, "train sentences 12.1", 12345, "transformers"),
        *((1.0, 2.0), compute_time_ratio([2.0], [1.0]), (10**9, 10**9), 1e12, (0.123, 0.456)),
    )
    line, above = str(row), COLUMNS.splitlines()[-1]
    for column, value in {"dtype": "bf16-mixed", "step": "train", "peer": "transformers"}.items():
        assert above.index(column) == line.index(value)
    for column, value in {"threads": "16", "count": "12345", "vitkit": "12345.0"}.items():
        assert above.index(column) + len(column) == line.index(value + " ") + len(value)
    assert len(above) == len(line)


def test_both_sides_have_the_fused_optimizer_and_decay_for_matrices() -> None:
    ours, peer, _ = build_vits(parse_shape("ti/4@8"))
    optimizers = [build_optimizer(model) for model in (ours, peer)]
    counts = [[sum(p.numel() for p in group["params"]) for group in o.param_groups] for o in optimizers]
    assert all(o.defaults["fused"] for o in optimizers) and counts[0] == counts[1]
    assert [group["weight_decay"] for group in optimizers[0].param_groups] == [0.01, 0]


def test_frozen_parameters_are_not_optimized() -> None:
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    groups = build_optimizer(model).param_groups
    assert [parameter is model.weight for group in groups for parameter in group["params"]] == [True]


@dataclass(frozen=True)
class Word:
    text: str

    def __str__(self) -> str:
        return self.text


def test_noisy_rows_are_marked(tmp_path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    usages = iter([Usage(0, 0, 0), Usage(10, 10, 10), Usage(20, 20, 15)])
    monkeypatch.setattr(machine_load, "measure_usage", lambda: next(usages))
    rows = [Word("calm"), Word("noisy")]
    assert print_rows("header", rows, {"torch": torch.__version__}, tmp_path / "rows.json") == 0
    header, *lines, note = capsys.readouterr().out.splitlines()
    assert (header, lines) == ("header", ["calm", "noisy *"]) and note.startswith(
        "note: other processes used up to 50%"
    )
    figures = json.loads((tmp_path / "rows.json").read_text())
    assert figures["rows"] == [{"text": "calm", "others": 0}, {"text": "noisy", "others": 0.5}]
