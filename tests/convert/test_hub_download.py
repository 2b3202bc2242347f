import fnmatch
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

import vitkit
from vitkit.bundle import folder, model_config
from vitkit.bundle.bundle import Bundle
from vitkit.convert import hub_download
from vitkit.convert.hub_download import fetch_repository
from vitkit.convert.open import fetch_model_folder, open_model
from vitkit.data.preprocess import Preprocess


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("source", "tried"),
    [
        ("hf:nobody/nothing", "huggingface.co/nobody/nothing"),
        ("hf:nobody/nothing@v1", "huggingface.co/nobody/nothing"),
        ("timm:vit_tiny_patch16_224", "huggingface.co/timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"),
        ("openclip:ViT-B-32@openai", "huggingface.co/timm/vit_base_patch32_clip_224.openai"),
    ],
)
def test_missing_network_raises_one_line_within_seconds(source: str, tried: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError) as raised:
        vitkit.open_model(source)
    rule = f"{source} must be on the hub or in its cache, tried {tried}"
    assert str(raised.value) == f"{rule}: no network, and not in the cache"
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:not a name", "must be on the hub"),
        ("timm:vit_tinny_patch16_224", "did you mean vit_tiny_patch16_224"),
        ("timm:vit_tiny_patch16_224.nothing", "must name weights that timm knows"),
        ("openclip:ViT-B-33", "did you mean ViT-B-32"),
        ("openclip:ViT-B-32", "must be openclip:NAME@PRETRAINED, with one of openai, "),
        ("torchhub:dinov2", "torchhub: is not a source of models"),
        ("hf:", "hf: must name a repository"),
        ("hf:@v1", "hf:@v1 must name a repository"),
        ("timm:", "timm: must name a model"),
        ("timm:resnet18", "is not supported: the class ResNet"),
    ],
)
def test_unknown_name_raises_with_a_suggestion(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        vitkit.open_model(source)
    assert "\n" not in str(raised.value)


def test_model_folder_opens_from_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is laid out as by huggingface_hub, so a model that was fetched once opens without a network."""
    commit = "0" * 40
    repository = tmp_path / "models--me--tiny"
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    arguments = {"image_size": [8, 12], "patch_size": [4, 4], "outputs": 2, "encoder": encoder}
    config: dict[str, Any] = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    model = model_config.build_model(config).eval()
    preprocess = Preprocess((8, 12), (0.5,) * 3, (0.5,) * 3)
    folder.save(repository / "snapshots" / commit, Bundle(model, config, preprocess, ("a", "b"), multilabel=True))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert huggingface_hub.try_to_load_from_cache("me/tiny", "config.yaml") is not None
    images = torch.randn(2, 3, 8, 12)
    bundle = open_model("hf:me/tiny")
    torch.testing.assert_close(bundle.model(images), model(images), rtol=0, atol=0)
    assert (bundle.preprocess, bundle.class_names) == (preprocess, ("a", "b"))
    assert (
        fetch_model_folder("hf:me/tiny")
        == fetch_repository("hf:me/tiny", "me/tiny")
        == repository / "snapshots" / commit
    )


def test_pickles_are_fetched_only_as_a_last_resort(tmp_path: Path) -> None:
    requests: list[list[str]] = []
    repositories: list[tuple[str, str]] = []
    files = {"config.json", "pytorch_model.bin"}

    def fetch(source: str, name: str, revision: str, patterns: list[str]) -> Path:
        repositories.append((name, revision))
        requests.append([pattern for pattern in patterns if pattern not in hub_download.DESCRIPTIONS])
        for pattern in patterns:
            for file in fnmatch.filter(files, pattern):
                (tmp_path / file).touch()
        return tmp_path

    fetch_repository("hf:me/x", "me/x", fetch=fetch)
    assert requests == [[*hub_download.HF_WEIGHTS], [*hub_download.OPENCLIP_WEIGHTS], [*hub_download.HF_PICKLES]]
    requests.clear()
    files |= {"model-00001-of-00002.safetensors"}
    fetch_repository("hf:me/x", "me/x@v1", fetch=fetch)
    assert requests == [[*hub_download.HF_WEIGHTS]]
    assert repositories == [*[("me/x", "")] * 3, ("me/x", "v1")]
