import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

SIZES = {"img_size": [16, 24], "patch_size": [8, 8], "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
PICTURES = {"input_size": [3, 16, 24], "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "crop_pct": 0.9}


def randomize(model: nn.Module) -> nn.Module:
    """Draw all parameters at random: zeros and ones would hide swapped ones."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """Return a function that makes a VisionTransformer of timm with random parameters."""

    def make(**arguments: Any) -> Any:
        return randomize(timm.create_model("vit_base_patch16_224", **{**SIZES, **arguments}))

    return make


@pytest.fixture
def timm_folder(tmp_path: Path, tiny: Callable[..., Any]) -> tuple[Path, Any]:
    """Return a folder in the layout of timm's repositories on the hub, and the model in it."""
    model, folder = tiny(), tmp_path / "of timm"
    folder.mkdir()
    cfg = {**PICTURES, "interpolation": "bilinear", "crop_mode": "center", "fixed_input_size": True, "num_classes": 3}
    cfg |= {"first_conv": "patch_embed.proj", "classifier": "head"}
    config = {"architecture": "vit_base_patch16_224", "num_classes": 3, "label_names": ["cat", "dog", "owl"]}
    (folder / "config.json").write_text(json.dumps({**config, "model_args": SIZES, "pretrained_cfg": cfg}))
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder, model
