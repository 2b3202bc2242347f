"""What a config may ask of a run, beyond the model and its data: each knob does what it says."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from lightning.pytorch.strategies import DDPStrategy
from PIL import Image
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from torch.testing import assert_close

from vitkit.bundle.weights import save_weights
from vitkit.cli import main
from vitkit.commands.describe import open_network
from vitkit.convert.open import open_model
from vitkit.data.demo.built_in import load_digits
from vitkit.fit.command import make_trainer
from vitkit.fit.folder_options import read_folders
from vitkit.fit.recomputation import BlockCheckpointing
from vitkit.fit.run_config import CLI
from vitkit.nn import Block

ROOT = Path(__file__).parents[2]
SHORT = ("--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=2")
SHORT += ("--model.schedule.warmup=0",)


def fit(config: Path, run: Path, *options: str) -> int:
    return main(["fit", "--config", str(config), "--run", str(run), *options])


def load_epochs(run: Path) -> int:
    return json.loads((run / "report.json").read_text())["epochs"]


def test_patience_stops_a_run(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    still = ["--model.base_lr=0", "--trainer.limit_train_batches=2", "--trainer.max_epochs=9", "--ema.decay=0"]
    assert fit(config, run, *still, "--patience=2") == 0
    assert load_epochs(run) == 3  # the first is the best, and two are no better
    assert fit(config, run, *still, "--patience=2") == 0
    assert "stopped after 2 validations without a better score; raise patience to resume" in capsys.readouterr().out
    assert load_epochs(run) == 3
    assert fit(config, run, *still, "--patience=4") == 0
    assert load_epochs(run) == 5
    assert fit(config, run, *still, "--patience=0") == 1
    assert capsys.readouterr().err == "error: patience must be at least 1, got patience=0\n"


def test_print_groups_trains_nothing(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--print_groups",
        "--model.layer_decay=0.5",
        "--model.freeze=[embed.*]",
        *("--trainer.accumulate_grad_batches=2", "--trainer.devices=2", "--trainer.strategy=ddp"),
    ]
    assert fit(config, tmp_path / "run", *options) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    lr = 0.01 * 48 * 2 * 2 / 256
    assert lines["model.head.weight"][-5:] == ["layer", "3", "decayed", "0.05", f"{lr:.4g}"]
    assert lines["model.encoder.blocks.1.mlp.f.up.bias"][-5:] == ["layer", "2", "plain", "0", f"{lr / 2:.4g}"]
    assert lines["model.embed.table.weight"][-1] == "frozen"
    assert not (tmp_path / "run").exists()


def test_zero_decay_turns_averaging_off(config: Path, tmp_path: Path) -> None:
    assert fit(config, tmp_path / "run", *SHORT, "--ema.decay=0") == 0
    checkpoint = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)
    assert "current_model_state" not in checkpoint
    assert fit(config, tmp_path / "averaged", *SHORT) == 0
    assert "current_model_state" in torch.load(tmp_path / "averaged" / "last.ckpt", weights_only=True)


def build_cli(config: Path, *options: str) -> CLI:
    return CLI(["--config", str(config), *options])


def test_ddp_config_sets_the_strategy(config: Path) -> None:
    made = build_cli(config, "--config", str(ROOT / "configs/ddp.yaml"), "--trainer.devices=1")
    strategy = cast(Any, make_trainer(made)).strategy
    assert isinstance(strategy, DDPStrategy)
    flags = {"gradient_as_bucket_view": True, "find_unused_parameters": False}
    assert flags.items() <= strategy._ddp_kwargs.items()


def test_sharding_refuses_clipping_and_averages(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sharded = ["--config", str(ROOT / "configs/fsdp.yaml"), "--ema.decay=0.9", "--trainer.gradient_clip_val=1"]
    assert fit(config, tmp_path / "run", *sharded) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: trainer.gradient_clip_val must be null: ") and err.count("\n") == 1
    assert "; ema.decay must be 0: " in err and not (tmp_path / "run").exists()
    made = build_cli(config, "--config", str(ROOT / "configs/fsdp.yaml"))  # which turns both off
    assert (made.config.trainer.gradient_clip_val, made.config.ema.decay) == (None, 0)


def test_recomputation_by_option_and_by_policy_is_exclusive(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callbacks = cast(Any, make_trainer(build_cli(config, "--checkpoint_blocks"))).callbacks
    assert sum(isinstance(callback, BlockCheckpointing) for callback in callbacks) == 1
    sharded = ["--config", str(ROOT / "configs/fsdp.yaml"), "--checkpoint_blocks"]
    assert build_cli(config, *sharded[:2]).config.trainer.strategy.init_args.activation_checkpointing_policy == {Block}
    assert fit(config, tmp_path / "run", *sharded) == 1
    err, policy = capsys.readouterr().err, "trainer.strategy.activation_checkpointing_policy"
    assert err.startswith(f"error: one of checkpoint_blocks and {policy} may be given, and not both")
    assert err.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.soak
def test_two_processes_with_accumulation_equal_one(config: Path, tmp_path: Path) -> None:
    plain = ["--model.model.encoder.drop_path=0", "--model.model.encoder.residual.dropout=0", "--threads=1"]
    both = [*plain, *SHORT[:1], *SHORT[2:], "--trainer.limit_train_batches=4", "--trainer.accumulate_grad_batches=2"]
    assert fit(config, tmp_path / "one", *both) == 0
    flags = ["--config", ROOT / "configs/ddp.yaml", "--trainer.devices=2", "--data.batch=24"]
    command = [sys.executable, ROOT / "train.py", "fit", "--config", config, "--run", tmp_path / "two", *both, *flags]
    subprocess.run(command, check=True, timeout=200)
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    assert_close(two, one, rtol=1e-4, atol=1e-6)


def test_averaging_in_bfloat16_is_refused(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(config, tmp_path / "run", "--trainer.precision=bf16-true", *SHORT) == 1
    assert "ema.decay must be 0 under trainer.precision = bf16-true" in capsys.readouterr().err


def test_unreadable_batch_is_no_step(
    config: Path, tmp_path: Path, colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted(colours.glob("*/*.png"))[::3]:
        path.write_bytes(b"")
    options = [f"--data.train={colours}", "--data.batch=1", "--data.reading.on_error=skip", "--trainer.max_epochs=1"]
    assert fit(config, tmp_path / "run", *options) == 0
    assert "error: 8 of 24 pictures could not be read" in capsys.readouterr().err
    rows = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    trained = 19 - sum(not Path(name).stat().st_size for name in list_training_files(tmp_path / "run"))
    assert sum(bool(row.split(",")[2]) for row in rows[1:]) == trained < 19


def list_training_files(run: Path) -> list[str]:
    data = cast(Any, CLI(["--config", str(run / "config.yaml")]).datamodule)
    return [data.source.get_name(sample) for sample in data.training]


@pytest.fixture
def pretrained(config: Path, tmp_path: Path) -> Path:
    assert (
        fit(
            config, tmp_path / "first", *SHORT, "--data.preprocess.crop=0.9", "--data.preprocess.interpolation=bilinear"
        )
        == 0
    )
    return tmp_path / "first" / "model"


def write_recipe(config: Path, tmp_path: Path, **data: Any) -> Path:
    """The recipe of `config` without its model, on other data."""
    content = yaml.safe_load(config.read_text())
    del content["model"]["init_args"]["model"]
    content["data"]["init_args"] = {"batch": 48, **data}
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    for name, shade in {"dark": 40, "light": 200}.items():
        (tmp_path / "colours" / name).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (9, 8), (shade, number, number)).save(tmp_path / "colours" / name / f"{number}.png")
    return tmp_path / "colours"


def test_run_starts_from_a_model_folder(
    config: Path, tmp_path: Path, pretrained: Path, colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = write_recipe(config, tmp_path, train=str(colours)), tmp_path / "run"
    still = ["--model.base_lr=0", "--ema.decay=0", "--model.schedule.warmup=0", "--trainer.max_epochs=1"]
    assert fit(recipe, run, "--pretrained", str(pretrained), *still) == 0
    out = capsys.readouterr().out
    assert f"weights of {pretrained}\n  a new head for 2 classes" in out
    before, after = (load_file(folder / "model.safetensors") for folder in (pretrained, run / "model"))
    body = {name for name in before if not name.startswith("head.")}
    assert_close({name: after[name] for name in body}, {name: before[name] for name in body}, rtol=0, atol=0)
    assert after["head.weight"].shape == (2, 16)
    bundle = open_model(run / "model")
    preprocess, classes = bundle.preprocess, bundle.class_names
    assert classes == ("dark", "light") and preprocess == open_model(pretrained).preprocess
    assert (preprocess.crop, preprocess.interpolation) == (0.9, "bilinear")
    again = yaml.safe_load((run / "config.yaml").read_text())
    assert again["pretrained"] == str(pretrained)
    assert again["model"]["init_args"]["model"]["init_args"]["encoder"]["init_args"]["depth"] == 2


def test_pretrained_model_adapts_to_size_and_channels(
    config: Path, tmp_path: Path, pretrained: Path, colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = write_recipe(config, tmp_path, train=str(colours)), tmp_path / "run"
    options = [
        "--data.preprocess.size=[12, 16]",
        "--data.preprocess.mean=[0.5, 0.5, 0.5]",
        "--data.preprocess.std=[0.5, 0.5, 0.5]",
    ]
    frozen = ["--model.freeze=[embed.*, encoder.*]", "--model.model.encoder.drop_path=0.4", "--model.schedule.warmup=0"]
    assert fit(recipe, run, f"--pretrained={pretrained}", *options, *frozen, "--trainer.max_epochs=1") == 0
    out = capsys.readouterr().out
    assert "embed.patches from 1 to 3 channels" in out and "embed.table from (2, 2) to (3, 4)" in out
    model = open_model(run / "model").model
    assert model(torch.zeros(1, 3, 12, 16)).shape == (1, 2)
    assert model.get_submodule("encoder.blocks.1.attn").drop == 0.4
    old, new = (load_file(folder / "model.safetensors") for folder in (pretrained, run / "model"))
    assert_close(new["encoder.norm.weight"], old["encoder.norm.weight"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--pretrained=nowhere", "openclip:NAME@PRETRAINED or hf:NAME, got pretrained=nowhere"),
        ("--model.model.encoder.depth=3", "state must fit the model, got"),
    ],
)
def test_unsuitable_folder_is_refused(
    option: str, message: str, config: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(config, tmp_path, train="digits")
    assert fit(recipe, tmp_path / "run", f"--pretrained={pretrained}", option, *SHORT) == 1
    assert message in capsys.readouterr().err


def test_resumed_run_ignores_the_pretrained_folder(
    config: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, run = write_recipe(config, tmp_path, train="digits"), tmp_path / "run"
    assert fit(recipe, run, f"--pretrained={pretrained}", *SHORT) == 0
    capsys.readouterr()
    assert fit(recipe, run, f"--pretrained={pretrained}", *SHORT[1:], "--trainer.max_epochs=2") == 0
    out = capsys.readouterr().out
    assert "resuming" in out and "weights of" not in out


def test_omissions_are_printed_first_and_unreadable_images_are_listed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = load_digits()
    for sample in range(61):
        folder = "alone" if sample == 60 else source.class_names[source.labels[sample] % 3]
        path = tmp_path / "pets" / folder / f"{sample}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        source.read_image(sample).save(path)
    broken = sorted((tmp_path / "pets").glob("*/*.png"))[::9]
    for path in broken:
        path.write_bytes(path.read_bytes()[:40])
    options = [
        f"--data.train={tmp_path / 'pets'}",
        "--data.reading.on_error=skip",
        "--trainer.max_epochs=2",
        "--data.batch=8",
    ]
    assert fit(config, tmp_path / "run", *options, "--report.baselines=true") == 0
    out, error = capsys.readouterr()
    lone = "class trained on but not validated, as no picture of them is held out"
    assert out.index(f"left out: 1 {lone}, such as alone") < out.index("precision = ")
    listed = (tmp_path / "run" / "unreadable.txt").read_text().splitlines()
    assert f"error: {len(broken)} of 61 pictures could not be read; all are in" in error and len(listed) == len(broken)
    assert all(any(str(path) in line for line in listed) for path in broken)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    validation = list_validation_files(tmp_path)
    held_out = report["pictures"] + sum(str(path) in line for line in listed for path in validation)
    assert report["unreadable"] == len(broken) and held_out == 12
    assert report["left_out"] == [
        {"reason": lone.replace("class ", "classes "), "count": 1, "example": "alone"},
        {"reason": "samples that could not be read", "count": len(broken), "example": listed[0]},
    ]


def list_validation_files(tmp_path: Path) -> list[Path]:
    """Return the image files that the run validates on."""
    data = cast(Any, CLI(["--config", str(tmp_path / "run" / "config.yaml")]).datamodule)
    return [Path(data.source.get_name(sample)) for sample in data.validation]


@pytest.mark.parametrize(
    "augment",
    [
        {"class_path": "torchvision.transforms.v2.RandAugment", "init_args": {"num_ops": 2, "magnitude": 10}},
        {"class_path": "vitkit.data.augment.ThreeAugment"},
        {"class_path": "torchvision.transforms.v2.RandomResizedCrop", "init_args": {"size": [8, 8]}},
    ],
)
def test_config_names_augmentations_and_losses(augment: dict[str, Any], config: Path, tmp_path: Path) -> None:
    content = yaml.safe_load(config.read_text())
    content["data"]["init_args"] |= {
        "augment": {
            "images": [augment],
            "tensors": [{"class_path": "vitkit.data.augment.RandomErasing", "init_args": {"p": 0.5}}],
        },
        "draw": {"class_path": "vitkit.data.order.Repeated", "init_args": {"times": 3}},
    }
    mixes = [("MixUp", 0.2), ("CutMix", 1.0)]
    content["model"]["init_args"] |= {
        "mix": [
            {"class_path": f"torchvision.transforms.v2.{name}", "init_args": {"alpha": alpha}} for name, alpha in mixes
        ],
        "loss": "vitkit.losses.binary_cross_entropy",
        "schedule": {"class_path": "vitkit.optim.InverseSquareRoot", "init_args": {"warmup": 1, "timescale": 10}},
    }
    config.write_text(yaml.safe_dump(content))
    assert fit(config, tmp_path / "run", *SHORT) == 0


def test_image_in_both_parts_is_reported(
    config: Path, tmp_path: Path, colours: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(colours, tmp_path / "val")
    for number in range(1, 12):
        for name in ("dark", "light"):
            Image.new("RGB", (9, 8), (number, 3, 4)).save(tmp_path / "val" / name / f"{number}.png")
    options = [f"--data.train={colours}", f"--data.val={tmp_path / 'val'}", *SHORT]
    assert fit(config, tmp_path / "run", *options) == 0
    out = capsys.readouterr().out
    same = f"such as {colours}/dark/0.png = {tmp_path}/val/dark/0.png; the score on them is no evidence"
    assert f"2 of 24 validation pictures are also in training, {same}" in out


@pytest.mark.compile
def test_compiled_run_equals_an_eager_one(config: Path, tmp_path: Path) -> None:
    plain = [
        *SHORT[:-1],
        "--model.schedule.warmup=1",
        "--model.model.encoder.drop_path=0",
        "--model.model.encoder.residual.dropout=0",
    ]
    assert fit(config, tmp_path / "eager", *plain) == 0
    torch.compiler.reset()
    counters.clear()
    assert fit(config, tmp_path / "compiled", *plain, "--compile") == 0
    assert counters["stats"]["unique_graphs"] > 0
    eager, compiled = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("eager", "compiled"))
    assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


def test_config_names_the_folder_and_options_override_it(
    config: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(config, tmp_path, train="digits")
    recipe.write_text(f"pretrained: {pretrained}\n{recipe.read_text()}")
    for flag in ("--config", "-c"):
        assert main(["fit", flag, str(recipe), f"--run={tmp_path}/{flag}", "--print_groups"]) == 0
    assert "model.encoder.blocks.1" in capsys.readouterr().out
    assert read_folders(["--pretrained=nowhere", "--config", str(recipe)]).whole == str(pretrained)
    assert read_folders(["-c", str(recipe), "--pretrained", "other"]).whole == "other"
    assert read_folders(["-c", str(recipe), "--pretrained=null"]).whole is None


def test_overfit_and_describe_use_the_pretrained_weights(
    config: Path, tmp_path: Path, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(pretrained / "model.safetensors")["encoder.blocks.0.mlp.f.up.weight"]
    recipe = write_recipe(config, tmp_path, train="digits")
    subject, *_ = open_network(str(recipe), [f"--pretrained={pretrained}"])
    assert_close(subject.model.get_parameter("encoder.blocks.0.mlp.f.up.weight").detach(), weights)
    sure = load_file(pretrained / "model.safetensors")
    sure["head.bias"][0] += 50  # of the first digit, and so far from most labels
    save_weights(pretrained, sure)
    capsys.readouterr()
    assert main(["overfit", "--config", str(recipe), f"--pretrained={pretrained}", "--steps=1"]) == 1
    assert float(capsys.readouterr().out.split("loss ")[1].split()[0]) > 20
