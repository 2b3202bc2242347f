from pathlib import Path

import torch
from PIL import Image

from vitkit.tasks.report import draw, majority, table


def test_the_last_epoch_comes_first_and_the_baselines_beside_it() -> None:
    result = {"accuracy": 0.98, "best": 0.99, "pictures": 1000, "epochs": 3, "steps": 60, "seconds": 9.6}
    result["steps_since_resumed"] = 60
    lines = table({**result, "samples_per_second": 1234.5, "baselines": {"5-NN on pixels": 0.9}}).splitlines()
    assert lines[0] == "accuracy on 1,000 pictures held out"
    assert lines[1].split("  ")[0] == "averaged weights, last epoch" and lines[1].endswith(" 98.00%")
    assert lines[2].split("  ")[0] == "the best epoch, picked in hindsight" and lines[2].endswith(" 99.00%")
    assert lines[3].split("  ")[0] == "5-NN on pixels" and lines[3].endswith(" 90.00%")
    assert lines[4] == "3 epochs, 60 steps, 10 s, 1,234 pictures/s"
    resumed = table({**result, "steps_since_resumed": 20, "samples_per_second": 1234.5, "baselines": {}})
    assert resumed.splitlines()[-1] == "3 epochs, 60 steps (20 since resumed), 10 s, 1,234 pictures/s"


def test_always_answering_the_most_frequent_class_is_the_least_to_beat() -> None:
    assert majority(torch.tensor([[0, 3], [1, 0]])).accuracy == 0.75


def test_the_confusion_matrix_is_drawn_for_any_names(tmp_path: Path) -> None:
    names = ["$x", "a_b^c", "\u5b57", *(f"class {number}" for number in range(27))]
    draw(torch.eye(30, dtype=torch.int64) * 7, names, tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as image:
        assert min(image.size) > 1500
    draw(torch.tensor([[3, 1], [0, 0]]), ["cat", "dog"], tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as image:
        assert max(image.size) < 500
