"""The warning about a model that is too large for its data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonargparse import Namespace
from PIL import Image

from vitkit.cli import main
from vitkit.fit.folder_options import TOWERS
from vitkit.fit.model_size import describe_excess
from vitkit.models import TextTower, ViT
from vitkit.nn import Encoder

RECIPE = Path(__file__).parents[2] / "configs" / "classify_folder.yaml"
OPTIONS = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--data.workers=0", "--threads=1")
STEP = ("--trainer.max_epochs=1", "--trainer.max_steps=1", "--model.schedule.warmup=0", "--report.baselines=false")


def make_config(pretrained: str | None = None) -> Namespace:
    return Namespace({"pretrained": pretrained, **{f"pretrained_{tower}": None for tower in TOWERS}})


def test_vocabulary_and_frozen_parameters_are_not_counted(few: Callable[..., Any]) -> None:
    data = few()  # 21 pictures
    large = ViT(Encoder(96, 3, 2), (8, 8), (4, 4), 10, channels=1)  # 0.3 M parameters
    assert "warning: 33" in describe_excess(make_config(), large, data)[0]
    assert describe_excess(make_config(), large.requires_grad_(False), data) == []
    assert describe_excess(make_config(), TextTower(Encoder(8, 1, 2, causal=True), vocabulary=49408), data) == []


def test_pretrained_model_may_have_any_size(few: Callable[..., Any]) -> None:
    large = ViT(Encoder(96, 3, 2), (8, 8), (4, 4), 10, channels=1)
    assert describe_excess(make_config(), large, few())
    assert describe_excess(make_config("timm:vit"), large, few()) == []


def test_run_begins_with_a_warning_and_the_options_that_make_the_model_smaller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, level in {"dark": 40, "light": 200}.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.full((8, 8, 3), level + number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    options = [f"--config={RECIPE}", f"--data.train={tmp_path / 'pictures'}", f"--run={tmp_path / 'run'}"]
    assert main(["fit", *options, *OPTIONS, *STEP, "--data.augment.images=[]"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 1 and "too many for 9 pictures from scratch (at most 10,000 for each)" in lines[0]
    assert lines[0].endswith("or take smaller --model.model.encoder.dim, --model.model.encoder.depth")
