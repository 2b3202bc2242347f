"""Two towers on the command line: training, evaluation, resume, and start from other folders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess
from vitkit.models import CLIP, ViT

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--threads=1", "--data.workers=0")
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.varied=4")
STILL = ("--model.lr=0", "--ema.decay=0")
PREPROCESS = Preprocess((8, 8), (0.5,), (0.25,), crop=0.9)


def encoder(depth: int = 1, **further: Any) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": depth, "heads": 2, **further}}


IMAGE = {"class_path": "vitkit.models.ViT", "init_args": {"patch_size": [4, 4], "outputs": 8, "encoder": encoder()}}
TEXT = {
    "class_path": "vitkit.models.TextTower",
    "init_args": {"context": 6, "outputs": 8, "encoder": encoder(causal=True)},
}


def recipe(folder: Path) -> Path:
    model = {"class_path": "vitkit.models.CLIP", "init_args": {"image": IMAGE, "text": TEXT}}
    preprocess = {"size": [8, 8], "mean": [0.5], "std": [0.5]}
    data = {"train": "digits", "preprocess": preprocess, "batch": 40, "tokenizer": {"context": 6}}
    content = {
        "model": {"class_path": "vitkit.tasks.contrast.Contrast", "init_args": {"lr": 1e-3, "model": model}},
        "data": {"class_path": "vitkit.data.pairs.Pairs", "init_args": data},
        "trainer": {"precision": "32-true", "num_sanity_val_steps": 0},
    }
    path = folder / "pairs.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return recipe(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model folder of a CLIP that was trained for an epoch too many."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("--trainer.max_epochs=3", "--model.lr=0.03", "--ema.decay=0.5", "--model.varied=0")
    assert fit(recipe(folder), folder / "run", *options) == 0
    return folder / "run" / "model"


def fit(config: Path, run: Path, *options: str) -> int:
    return main(["fit", f"--config={config}", f"--run={run}", *QUIET, *SHORT, *options])


def save_random_model(model: dict[str, Any], folder: Path) -> torch.nn.Module:
    network = model_config.build_model(model)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save(folder, Bundle(network, model, PREPROCESS))
    return network


def test_run_has_a_model_a_report_and_a_figure(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert fit(config, run, "--report.baselines=true") == 0
    out = capsys.readouterr().out
    assert "\nimage -> text " in out and "(chance 10.00% 50.00% 100.00%), median rank" in out
    assert "\ntraining pairs, new crops\n  image -> text " in out
    assert "\nbaseline: captions of the nearest training images\n  image -> text " in out
    assert f"vitkit index PICTURES --model {run}/model" in out
    report = json.loads((run / "report.json").read_text())
    assert report["varied"]["pictures"] == 4 and report["chance"]["image_to_text_R@1"] == pytest.approx(0.1)
    assert report["baselines"]["image_to_text_R@1"] > 0.9  # nearest digits have the digit's name
    with Image.open(run / "retrievals.png") as picture:
        assert picture.width > 6 * 128
    bundle = open_model(run / "model")
    assert isinstance(bundle.model, CLIP) and bundle.tokenizer is not None and bundle.tokenizer.context == 6
    assert bundle.model.image.embed.patches.in_channels == 1 and bundle.preprocess.size == (8, 8)
    held = yaml.safe_load((run / "model" / "config.yaml").read_text())["init_args"]["image"]["init_args"]
    assert (held["image_size"], held["channels"], held["outputs"]) == ([8, 8], 1, 8)
    assert not {"image_size", "channels"} & {
        *yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]["model"]["init_args"]["image"][
            "init_args"
        ]
    }
    assert fit(config, run, "--report.baselines=true") == 0  # the same command: nothing is left to do
    assert "is finished after 1 epoch" in capsys.readouterr().out


def test_evaluation_of_the_model_equals_the_report(trained: Path, tmp_path: Path) -> None:
    assert main(["evaluate", str(trained), "digits", "--fold=0", "--device=cpu", f"--out={tmp_path}"]) == 0
    run, evaluation = (json.loads((folder / "report.json").read_text()) for folder in (trained.parent, tmp_path))
    assert run["best"] > run["mean_recall"]  # of an earlier epoch
    names = ["pictures", "mean_recall", *(name for name in evaluation if "_to_" in name)]
    assert len(names) == 2 + 2 * 4
    assert {name: run[name] for name in names} == pytest.approx({name: evaluation[name] for name in names})
    assert run["chance"] == pytest.approx(evaluation["chance"])


def test_training_starts_from_two_towers(
    trained: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, folder = yaml.safe_load(config.read_text()), trained
    del own["model"]["init_args"]["model"], own["data"]["init_args"]["tokenizer"]
    (tmp_path / "further.yaml").write_text(yaml.safe_dump(own))
    assert fit(tmp_path / "further.yaml", tmp_path / "more", f"--pretrained={folder}", *STILL) == 0
    assert f"weights of {folder}\n  both towers\n" in capsys.readouterr().out
    before, after = (open_model(one).model.state_dict() for one in (folder, tmp_path / "more" / "model"))
    assert_close(after, before, rtol=0, atol=0)
    biased = ["--model.loss=vitkit.losses.sigmoid", "--model.model.bias=-10"]
    assert fit(tmp_path / "further.yaml", tmp_path / "biased", f"--pretrained={folder}", *STILL, *biased) == 0
    assert "a new bias" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["vit", "mae", "clip"])
def test_image_tower_starts_from_a_folder(
    kind: str, trained: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pool and depth replace those of the config; a frozen tower keeps its weights."""
    deep = {"encoder": encoder(2), "image_size": [8, 8], "patch_size": [2, 4], "channels": 1}
    tower = {"class_path": "vitkit.models.ViT", "init_args": {**deep, "outputs": 5, "pool": "vitkit.nn.Mean"}}
    tower["init_args"]["pre_norm"] = "vitkit.nn.LayerNorm"
    if kind == "vit":
        source = save_random_model(tower, tmp_path / "source")
    elif kind == "mae":
        mae = {"class_path": "vitkit.models.MAE", "init_args": {**deep, "decoder": encoder()}}
        source = save_random_model(mae, tmp_path / "source")
    else:
        source = open_model(trained).model.get_submodule("image")
    folder = trained if kind == "clip" else tmp_path / "source"
    lit = [f"--config={CONFIGS / 'contrast_lit.yaml'}", f"--pretrained_image={folder}", "--model.lr=0.1"]
    assert fit(config, tmp_path / "run", *lit) == 0
    out = capsys.readouterr().out
    assert f"image tower: weights of {folder}" in out
    assert ("the head too" if kind == "clip" else "a new head") in out
    assert ("the decoder is left behind" in out) == (kind == "mae")
    bundle = open_model(tmp_path / "run" / "model")
    assert isinstance(bundle.model, CLIP) and isinstance(bundle.model.image, ViT) and bundle.model.image.outputs == 8
    for name, weight in source.state_dict().items():
        if not name.startswith(("head.", "decoder.", "mask")):
            assert_close(bundle.model.image.state_dict()[name], weight, rtol=0, atol=0)
    assert type(bundle.model.image.pool).__name__ == ("First" if kind == "clip" else "Mean")


def test_text_tower_starts_from_a_folder(
    trained: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_model(trained).model.get_submodule("text").state_dict()
    text = [f"--pretrained_text={trained}", "--model.freeze=[text.*]", "--model.lr=0.1"]
    own = yaml.safe_load(config.read_text())
    own["data"]["init_args"]["tokenizer"] = {"context": 77}  # the folder knows better than a config
    config.write_text(yaml.safe_dump(own))
    assert fit(config, tmp_path / "run", *text) == 0
    assert "text tower: weights of" in capsys.readouterr().out
    found = open_model(tmp_path / "run" / "model").model.get_submodule("text").state_dict()
    assert_close(found, source, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model.model.image.image_size=[8, 8]"], "model.model.image.image_size must be left out"),
        (
            ["--trainer.precision=bf16-true", "--ema.decay=0"],
            "trainer.precision must keep weights in float32 for the scale",
        ),
        (
            ["--trainer.strategy=fsdp", "--ema.decay=0"],
            "trainer.strategy must not shard the scale, which is one number",
        ),
        (["--data.tokenizer.context=7"], "data.tokenizer.context must be the text tower's 6"),
        (["--model.loss=vitkit.losses.sigmod"], "model.loss: module 'vitkit.losses' has no attribute 'sigmod'"),
        (["--pretrained_image=nowhere"], "openclip:NAME@PRETRAINED or hf:NAME, got pretrained_image=nowhere"),
        (
            ["--pretrained=nowhere", "--pretrained_text=a", "--pretrained_decoder=b"],
            "pretrained must be given alone, got pretrained=nowhere and pretrained_text=a, pretrained_decoder=b",
        ),
    ],
)
def test_invalid_option_is_refused_before_a_folder_is_written(
    options: list[str], says: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert fit(config, tmp_path / "run", *options) != 0
    except SystemExit as stopped:
        assert stopped.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in error
    assert not (tmp_path / "run").exists()


def test_layer_decay_counts_from_the_top_of_each_tower(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deeper = ["--model.model.image.encoder.depth=3", "--print_groups", "--model.lr=1", "--model.layer_decay=0.5"]
    assert fit(config, tmp_path / "run", *deeper) == 0
    rates = {
        line.split()[0]: float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "model." in line
    }
    found = {name.removeprefix("model."): rate for name, rate in rates.items()}
    assert found["image.embed.patches.weight"] == 0.0625 and found["image.encoder.blocks.0.mlp.f.up.weight"] == 0.125
    assert found["image.encoder.blocks.2.mlp.f.up.weight"] == found["text.encoder.blocks.0.mlp.f.up.weight"] == 0.5
    assert found["text.embed.tokens.weight"] == 0.25 and found["text.head.weight"] == found["log_scale"] == 1.0


def test_config_runs_with_an_overlay(tmp_path: Path) -> None:
    shown = [f"--config={CONFIGS / name}.yaml" for name in ("contrast_digits", "contrast_siglip")]
    assert main(["fit", *shown, "--debug", f"--run={tmp_path / 'run'}", *QUIET]) == 0
    assert isinstance(open_model(tmp_path / "run-debug" / "model").model, CLIP)


def test_trained_vocabulary_survives_a_resume(config: Path, tmp_path: Path) -> None:
    """And so does one that is started from its folder, with all that says how its texts are read."""
    content = yaml.safe_load(config.read_text())
    text = content["model"]["init_args"]["model"]["init_args"]["text"]["init_args"]
    text |= {"vocabulary": 300, "pool": {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 0}}}
    content["data"]["init_args"]["tokenizer"] = {"vocabulary": 300, "context": 24}
    text["context"] = 24
    config.write_text(yaml.safe_dump(content))
    run = tmp_path / "run"
    assert fit(config, run) == 0
    before = (run / "model" / "tokenizer.json").read_bytes()
    assert fit(config, run, "--trainer.max_epochs=2") == 0
    assert (run / "model" / "tokenizer.json").read_bytes() == before
    bundle = open_model(run / "model")
    assert bundle.tokenizer is not None
    assert bundle.tokenizer.decode(bundle.tokenizer(["a seven"])[0].tolist()) == "a seven"
    own = {**content, "data": {**content["data"], "init_args": {**content["data"]["init_args"]}}}
    del own["data"]["init_args"]["tokenizer"]
    del own["model"]["init_args"]["model"]
    config.write_text(yaml.safe_dump(own))
    further = tmp_path / "further"
    assert fit(config, further, f"--pretrained={run / 'model'}") == 0
    assert (further / "model" / "tokenizer.json").read_bytes() == before
    assert (further / "model" / "text.json").read_bytes() == (run / "model" / "text.json").read_bytes()
