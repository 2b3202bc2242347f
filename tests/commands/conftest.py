import shutil
from pathlib import Path

import pytest
import torch

from vitkit.bundle import folder as bundle_folder
from vitkit.bundle import model_config
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer


def trunk(**more: object) -> dict[str, object]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2, **more}}


IMAGE = {"encoder": trunk(), "image_size": [16, 24], "patch_size": [8, 8], "outputs": 24}
TEXT = {"encoder": trunk(causal=True), "context": 12, "outputs": 24}
CONFIG = {
    "class_path": "vitkit.models.CLIP",
    "init_args": {
        "image": {"class_path": "vitkit.models.ViT", "init_args": IMAGE},
        "text": {"class_path": "vitkit.models.TextTower", "init_args": TEXT},
    },
}


@pytest.fixture(scope="session")
def random_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = model_config.build(CONFIG)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "log_scale":
                parameter.normal_(std=0.3)
    preprocess, folder = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3), tmp_path_factory.mktemp("clip")
    bundle_folder.save(folder, model, CONFIG, preprocess, (), tokenizer=Tokenizer(12))
    return folder


@pytest.fixture
def clip_folder(random_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CLIP of random numbers that tells pictures and texts apart; what it makes of classes is kept in tmp_path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(random_clip, tmp_path / "run" / "clip")
    return tmp_path / "run" / "clip"
