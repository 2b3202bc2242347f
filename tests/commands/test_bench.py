import json

import pytest
import torch

from vitkit.cli import main
from vitkit.commands.bench import LIMIT, affordable, forward, networks, parse, training


def test_both_models_have_the_same_parameters_and_outputs():
    ours, peer, image = networks(parse("ti/4@8"))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, peer)]
    assert image.shape == (1, 3, 8, 8) and counts[0] == counts[1]


@pytest.mark.parametrize("name", ["ti/4", "xl/4@32", "ti/5@32", "ti/0@32"])
def test_a_wrong_name_is_one_line(capsys, name):
    assert main(["bench", "--models", "ti/4@32", name]) == 1
    error = capsys.readouterr().err
    assert f"got model={name}" in error and error.count("\n") == 1


@pytest.mark.parametrize("option", ["--batch", "--pairs"])
def test_nothing_to_time_is_refused(capsys, option):
    assert main(["bench", option, "0"]) == 1
    assert "must be at least 1" in capsys.readouterr().err


def test_a_training_step_changes_every_weight_and_keeps_no_gradient():
    model, _, image = networks(parse("ti/4@8"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    training(model, image, torch.zeros(1, dtype=torch.long))()
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_forward_step_is_one_for_inference():
    model, _, image = networks(parse("ti/4@8"))
    output = forward(model.train(), image)()
    assert isinstance(output, torch.Tensor) and output.is_inference() and not model.training


def test_the_batch_shrinks_until_it_fits_the_time():
    image = 2 * 10 * 4 / 0.5  # seconds for 7 pairs where a forward pass takes one at the full rate
    assert affordable(8, 7, flops=1, rate=8 * image / LIMIT) == 8
    assert affordable(8, 7, flops=1, rate=2 * image / LIMIT) == 2
    assert affordable(8, 7, flops=1, rate=0.9 * image / LIMIT) == 0


def test_bench_prints_a_table_and_writes_json(tmp_path, capfd):
    path = tmp_path / "bench.json"
    arguments = [
        "bench",
        "--models",
        "ti/16@32",
        "--dtype",
        "float32",
        "--batch",
        "1",
        "--pairs",
        "2",
        "--device",
        "cpu",
    ]
    assert main([*arguments, "--json", str(path)]) == 0
    out, err = capfd.readouterr()
    result = json.loads(path.read_text())
    assert [row["step"] for row in result["rows"]] == ["forward", "training"]
    assert all(f"ti/16@32    float32   {row['step']}" in out for row in result["rows"])
    for row in result["rows"]:
        middle, least, greatest = row["speedup"]
        assert least <= middle <= greatest and row["vitkit"]["seconds"] > 0 < row["timm"]["share"]
    forward_bytes, training_bytes = (row["vitkit"]["memory"] for row in result["rows"])
    assert training_bytes > 4 * 4 * 5_500_000 > 2 * forward_bytes  # weights, gradients, two moments; weights
    assert result["torch"] == torch.__version__.partition("+")[0] and all(row["rate"] > 0 for row in result["rows"])
    assert err.count("timing") == 2 and "profiler" not in err
