"""Exports of models that no model of the other library stands for."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitkit.bundle import model_config
from vitkit.convert.overrides import Conversion
from vitkit.convert.write import TOLERANCE, write_layout
from vitkit.data.preprocess import Preprocess

pytest.importorskip("transformers")


@pytest.mark.parametrize(("prefix", "name"), [(1, "ViTModel"), (2, "DeiTModel")])
def test_headless_model_is_exported_to_transformers_without_a_pooler(prefix: int, name: str, tmp_path: Path) -> None:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2}}
    arguments = {"image_size": [16, 24], "patch_size": [8, 8], "encoder": encoder, "prefix": prefix, "outputs": 0}
    config: dict[str, Any] = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    state = model_config.build_model(config).state_dict()
    conversion = Conversion(config, state, Preprocess((16, 24), (0.5,) * 3, (0.5,) * 3), ())
    written = write_layout("hf", conversion, tmp_path)
    assert written.difference is not None and written.difference <= TOLERANCE
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [name]
