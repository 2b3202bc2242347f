import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.images import Images
from vitkit.data.pictures import Batch
from vitkit.data.preprocess import Preprocess
from vitkit.fit.checkpoint import AtomicIO, Checkpoint
from vitkit.fit.ema import EMA
from vitkit.fit.log import CSV
from vitkit.fit.overfit import main as overfit
from vitkit.fit.run_folder import list_entries
from vitkit.models import MAE, ViT, blockwise
from vitkit.nn import Encoder
from vitkit.optim import InverseSquareRoot
from vitkit.tasks.classify import Classify
from vitkit.tasks.reconstruction import Reconstruct

ROOT = Path(__file__).parents[2]
QUIET = {"probe_every": 0, "pictures_every": 0}
Few = Callable[..., Images]
Fit = Callable[..., Trainer]


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Images 16 wide and 8 high, at two depths, without labels."""
    for number in range(12):
        path = tmp_path / "wide" / ("deep" if number % 2 else ".") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 16), np.uint8)).save(path)
    return tmp_path / "wide"


def first(data: Images) -> Batch:
    return next(iter(data.train_dataloader()))


def test_loss_is_the_error_of_hidden_patches_summed_over_images(mae: MAE, few: Few) -> None:
    batch = first(few(batch=6))
    torch.manual_seed(1)
    loss = Reconstruct(mae, lr=1.0).compute_loss(batch)
    torch.manual_seed(1)
    reconstruction = mae(batch.images)
    target = mae.make_target(batch.images, reconstruction.hidden)
    assert_close(loss.total, (reconstruction.pixels - target).square().mean() * 6)
    assert loss.terms == 6


def test_target_is_float32_under_autocast(mae: MAE, few: Few) -> None:
    batch = first(few(batch=6))
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = Reconstruct(mae, lr=1.0).compute_loss(batch)
        torch.manual_seed(1)
        reconstruction = mae(batch.images)
    assert loss.total.dtype == torch.float32 and reconstruction.pixels.dtype == torch.bfloat16
    target = mae.make_target(batch.images, reconstruction.hidden)
    expected = (reconstruction.pixels.float() - target).square().mean() * 6
    assert_close(loss.total, expected)


@pytest.mark.parametrize("norm_pix", [True, False])
def test_explained_variance_compares_with_the_mean_of_each_patch(
    norm_pix: bool, mae: MAE, few: Few, trainer: Fit
) -> None:
    mae.norm_pix = norm_pix
    task, data = Reconstruct(mae, lr=1.0, **QUIET), few(batch=4, validation=23)
    trainer().validate(task, datamodule=data, verbose=False)
    targets, hidden, errors = [], [], []
    with torch.no_grad():
        for batch in data.val_dataloader():
            reconstruction = mae(batch.images, task.draw_noise(batch.indices))
            everything = mae.make_target(batch.images, torch.arange(8).expand(len(batch.images), -1))
            for row in range(len(batch.images)):
                targets.append(everything[row].numpy())
                hidden.append(reconstruction.hidden[row].numpy())
                errors.append(np.square(reconstruction.pixels[row].numpy() - targets[-1][hidden[-1]]).mean())
    means = np.stack(targets).mean(0)
    deviation = np.mean([np.square(target - means)[rows].mean() for target, rows in zip(targets, hidden, strict=True)])
    assert task.validated == 23
    assert task.patch_variance == pytest.approx(deviation, rel=1e-5)
    assert task.metrics["val/loss"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert task.metrics["val/explained"] == pytest.approx(1 - np.mean(errors) / deviation, abs=1e-5)


@pytest.mark.parametrize("masking", ["uniform", "blockwise"])
def test_validation_mask_depends_on_the_index_alone(masking: str, mae: MAE, few: Few, trainer: Fit) -> None:
    if masking == "blockwise":
        mae.masking = blockwise
    task, metrics = Reconstruct(mae, lr=1.0, **QUIET), {}
    for batch in (1, 5, 7):
        trainer().validate(task, datamodule=few(batch=batch), verbose=False)
        metrics[batch] = task.metrics
    assert metrics[1] == pytest.approx(metrics[5]) and metrics[5] == pytest.approx(metrics[7])
    state = torch.get_rng_state()
    one, two = task.draw_noise(torch.tensor([3, 9])), task.draw_noise(torch.tensor([9, 4, 3]))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, two[[2, 0]]) and not torch.equal(two[0], two[1])


def test_invalid_data_and_options_are_refused(mae: MAE, few: Few, trainer: Fit, wide: Path) -> None:
    for path in wide.rglob("*.png"):
        Image.new("L", (16, 8), 7).save(path)
    data = Images(str(wide), preprocess=Preprocess((8, 16), (0.5,), (0.5,)), unlabelled=True)
    with pytest.raises(ValueError, match="val must hold pictures that differ, got none"):
        trainer().validate(Reconstruct(mae, lr=1.0), datamodule=data, verbose=False)
    with pytest.raises(ValueError, match=r"model must be a vitkit.models.MAE, got ViT"):
        Reconstruct(ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 10, channels=1), lr=1.0)
    with pytest.raises(ValueError, match="pictures_every must be at least 0, got pictures_every=-1"):
        Reconstruct(mae, lr=1.0, pictures_every=-1)
    with pytest.raises(ValueError, match="data.unlabelled must be false for Classify"):
        Classify(mae, lr=1.0).bind(data)


class Stops(Callback):
    """Raises an error after so many steps, as a kill does."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.steps:
            raise RuntimeError("stopped")


def test_resumed_run_repeats_the_masks(few: Few, trainer: Fit, tmp_path: Path) -> None:
    def run(name: str, stop: int, resume: bool) -> dict[str, Tensor]:
        torch.manual_seed(3)
        encoders = Encoder(16, 1, 2, drop_path=0.3), Encoder(16, 1, 2)
        task = Reconstruct(MAE(*encoders, (8, 8), (4, 4), channels=1), lr=1e-2, schedule=InverseSquareRoot, **QUIET)
        folder, callbacks = tmp_path / name, [EMA(0.9), Checkpoint(every=1), Stops(stop)]
        options = {"callbacks": callbacks, "plugins": [AtomicIO()], "enable_checkpointing": True}
        options |= {"default_root_dir": folder, "log_every_n_steps": 1}
        run_trainer = trainer(2, logger=CSV(folder / "metrics.csv", 3 if resume else 0), **options)
        try:
            run_trainer.fit(task, datamodule=few(batch=4), ckpt_path=folder / "last.ckpt" if resume else None)
        except RuntimeError as error:
            assert str(error) == "stopped"
        return torch.load(folder / "last.ckpt", weights_only=True)

    (tmp_path / "cut").mkdir()
    (tmp_path / "whole").mkdir()
    whole = run("whole", 0, False)
    assert run("cut", 4, False)["global_step"] == 3
    cut = run("cut", 0, True)
    assert cut["global_step"] == whole["global_step"] == 12
    assert_close(cut["state_dict"], whole["state_dict"], rtol=0, atol=0)
    assert_close(cut["current_model_state"], whole["current_model_state"], rtol=0, atol=0)


def test_figures_are_files_and_events_and_change_no_weights(few: Few, trainer: Fit, tmp_path: Path) -> None:
    weights = []
    for every in (0, 2):
        torch.manual_seed(3)
        model = MAE(Encoder(16, 1, 2, drop_path=0.3), Encoder(16, 1, 2), (8, 8), (4, 4), channels=1)
        task = Reconstruct(model, lr=1e-2, pictures_every=every, probe_every=0)
        options = {"logger": TensorBoardLogger(tmp_path, name="events", version=""), "accumulate_grad_batches": 2}
        options |= {"log_every_n_steps": 1}
        trainer(1, **options).fit(task, datamodule=few(training=24, batch=4, validation=9))
        weights.append({name: weight.clone() for name, weight in model.state_dict().items()})
        assert task.training
    assert_close(weights[0], weights[1], rtol=0, atol=0)
    figures = sorted((tmp_path / "reconstructions").iterdir())
    assert [path.name for path in figures] == ["step-000002.png"]
    with Image.open(figures[0]) as picture:
        assert picture.height > 8 * 100  # eight rows
    events = b"".join(path.read_bytes() for path in (tmp_path / "events").iterdir())
    assert b"reconstructions" in events and b"\x89PNG" in events


@pytest.fixture
def config(tmp_path: Path, wide: Path) -> Path:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    model = {"patch_size": [4, 4], "encoder": encoder, "decoder": encoder}
    task = {"lr": 1e-3, "model": {"class_path": "vitkit.models.MAE", "init_args": model}, "pictures_every": 1}
    preprocess = {"size": [8, 16], "mean": [0.5], "std": [0.5]}
    data = {"train": str(wide), "preprocess": preprocess, "batch": 4, "unlabelled": True}
    content = {
        "model": {"class_path": "vitkit.tasks.reconstruction.Reconstruct", "init_args": task},
        "data": {"class_path": "vitkit.data.images.Images", "init_args": data},
        "trainer": {"max_epochs": 1, "enable_progress_bar": False, "accelerator": "cpu", "precision": "32-true"},
        "threads": 1,
    }
    path = tmp_path / "mae.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def fit(config: Path, run: Path, *options: str) -> int:
    return main(["fit", "--config", str(config), "--run", str(run), *options])


def test_fit_on_a_folder_without_labels(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert fit(config, run) == 0
    out = capsys.readouterr().out
    assert (
        "squared error of hidden patches on the validation set, 3 pictures\n(a hidden patch counts minus its true mean"
        in out
    )
    assert f"examples: {run}/reconstructions; vitkit reconstruct {run}/model PICTURES\n" in out
    assert f"--pretrained {run}/model" in out and "20-NN" not in out
    names = {"config.yaml", "last.ckpt", "best.ckpt", "metrics.csv", "events", "report.json", "model"}
    assert list_entries(run).keys() == names | {"curve.png", "reconstructions"}
    assert {path.name for path in (run / "reconstructions").iterdir()} == {f"step-{n:06d}.png" for n in (1, 2, 3)}
    report = json.loads((run / "report.json").read_text())
    assert report["explained_variance"] == pytest.approx(1 - report["loss"] / report["mean_of_patches"])
    assert (report["pictures"], report["probes"], report["probed_after_epochs"]) == (3, {}, None)
    bundle = open_model(run / "model")
    model, preprocess, classes = bundle.model, bundle.preprocess, bundle.class_names
    assert classes == () and preprocess.size == (8, 16) and isinstance(model, MAE)
    assert model.features(torch.zeros(1, 1, 8, 16)).shape == (1, 1 + 8, 16)

    (run / "report.json").unlink()  # killed between the last checkpoint and the report
    assert fit(config, run, "--model.pictures_every=2") == 0
    again = json.loads((run / "report.json").read_text())
    assert [again[key] for key in ("loss", "explained_variance", "steps")] == [
        report[key] for key in ("loss", "explained_variance", "steps")
    ]
    assert fit(config, run, "--trainer.max_epochs=2") == 0
    assert "resuming" in capsys.readouterr().out


@pytest.mark.parametrize("labels", ["one", "unlabelled", "unread"])
def test_evaluation_of_the_saved_model_equals_validation(labels: str, config: Path, wide: Path, tmp_path: Path) -> None:
    """The fold is split by labels if training reads them, with and without probes."""
    if labels != "unlabelled":
        for number, path in enumerate(sorted(wide.rglob("*.png"))):
            path.rename(path.parent / f"{number}.png")
        for number, path in enumerate(sorted(wide.rglob("*.png"))):
            (folder := wide / "ab"[number % 5 // 3]).mkdir(exist_ok=True)
            path.rename(folder / f"{number}-{path.name}")
        (wide / "deep").rmdir()
    decline = ["--trainer.max_epochs=3", "--model.lr=0.1", "--ema.decay=0.5", "--model.schedule.warmup=8"]
    options = decline if labels == "unlabelled" else ["--data.unlabelled=false", "--data.folds=3"]
    assert fit(config, tmp_path / "run", *options) == 0
    fold_options = {
        "one": ["--folds", "3"],
        "unlabelled": ["--unlabelled"],
        "unread": ["--folds", "3", "--no-probe"],
    }
    source = [str(tmp_path / "run/model"), str(wide), "--fold", "0", "--device", "cpu", "--batch", "4"]
    assert main(["evaluate", *source, *fold_options[labels], "--out", str(tmp_path / "run/evaluation")]) == 0
    validation, evaluation = (
        json.loads((tmp_path / "run" / name).read_text()) for name in ("report.json", "evaluation/report.json")
    )
    names = ("pictures", "loss", "explained_variance", "mean_of_patches")
    assert [evaluation[name] for name in names] == pytest.approx([validation[name] for name in names], rel=1e-6)
    assert ("probes" in evaluation) == (labels == "one")
    if labels == "unlabelled":  # the best is of an earlier epoch
        assert validation["best"] > validation["explained_variance"] + 0.001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report.baselines=true"], "report.baselines must be off with data.unlabelled"),
        (["--data.draw=vitkit.data.order.Balanced"], "draw must not be Balanced where data.unlabelled"),
        (["--model.model.ratio=0.99"], "ratio must leave some of 8 patches visible"),
        (["--config", str(ROOT / "configs/fsdp.yaml")], "model.pictures_every must be 0"),
    ],
)
def test_invalid_option_is_refused_in_one_line(
    options: list[str], message: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(config, tmp_path / "run", *options) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_overfit_keeps_one_mask(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With another mask in each step the loss would not converge."""
    assert overfit(["--config", str(config), "--model.lr=0.01"]) == 0
    assert re.match(r"ok: loss 1\.\d+ -> 0\.3\d+ in \d+ steps, .*, goal 0.37", capsys.readouterr().out)
    assert overfit(["--config", str(config), "--model.lr=0", "--steps=3"]) == 1
    loss, again = re.findall(r"[\d.]+", out := capsys.readouterr().out)[:2]
    assert loss == again and out.endswith("the learning rate is 0\n")


def test_only_matrices_decay(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learned = ["--model.model.table=vitkit.nn.Learned", "--model.model.decoder_table=vitkit.nn.Learned"]
    assert fit(config, tmp_path / "run", "--print_groups", *learned) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("model.")}
    plain = {name for name, line in lines.items() if "plain" in line}
    linear = {name for name in lines if name.endswith("weight")} - {name for name in lines if "norm" in name}
    assert set(lines) - plain == linear - {"model.embed.table.weight", "model.decoder.table.weight"}
    assert {
        "model.decoder.mask",
        "model.embed.prefix",
        "model.decoder.table.weight",
        "model.embed.table.weight",
    } <= plain
    assert {"model.decoder.embed.bias", "model.encoder.norm.weight", "model.decoder.pixels.bias"} <= plain


def test_masking_is_given_by_a_config(config: Path, tmp_path: Path) -> None:
    assert fit(config, tmp_path / "run", "--model.model.masking=vitkit.models.blockwise", "--trainer.max_epochs=1") == 0
    model = open_model(tmp_path / "run" / "model").model
    assert isinstance(model, MAE) and model.masking is blockwise


@pytest.mark.parametrize("name", ["pretrain_mae_mnist5k", "pretrain_mae_folder", "pretrain_mae_imagenet_b16"])
def test_config_trains_on_any_folder(name: str, wide: Path, tmp_path: Path) -> None:
    configs = [f"--config={ROOT / 'configs' / name}.yaml", "--debug", "--trainer.enable_progress_bar=false"]
    data = [f"--data.train={wide}", "--data.unlabelled=true", "--data.batch=4", "--data.workers=0"]
    options = ["--trainer.accelerator=cpu", "--trainer.precision=32-true", "--threads=1", f"--run={tmp_path / 'run'}"]
    assert main(["fit", *configs, *data, *options]) == 0
    assert json.loads((tmp_path / "run-debug" / "report.json").read_text())["steps"] == 3


def test_single_picture_is_validated_without_a_share(mae: MAE, few: Few, trainer: Fit) -> None:
    task = Reconstruct(mae, lr=1.0, **QUIET)
    trainer().validate(task, datamodule=few(validation=1), verbose=False)
    assert task.metrics["val/loss"] > 0 and math.isnan(task.metrics["val/explained"])


def test_equal_images_are_refused(mae: MAE, trainer: Fit, tmp_path: Path) -> None:
    for number in range(12):
        Image.new("L", (8, 8), 7).save(tmp_path / f"{number}.png")
    mae.norm_pix = False
    data = Images(str(tmp_path), preprocess=Preprocess((8, 8), (0.5,), (0.5,)), unlabelled=True)
    with pytest.raises(ValueError, match="val must hold pictures that differ, got none"):
        trainer().validate(Reconstruct(mae, lr=1.0, **QUIET), datamodule=data, verbose=False)


def test_figures_are_drawn_in_evaluation_mode(few: Few, trainer: Fit, tmp_path: Path) -> None:
    """Drop path would leave out half of the branches."""
    modes: list[bool] = []
    mae = MAE(Encoder(16, 2, 2, drop_path=0.9), Encoder(16, 1, 2), (8, 8), (2, 4), channels=1)
    mae.encoder.register_forward_hook(lambda module, arguments, output: modes.append(module.training))
    task = Reconstruct(mae, lr=1e-3, probe_every=0, pictures_every=2)
    trainer(1, limit_val_batches=0, log_every_n_steps=1).fit(task, datamodule=few(training=12, batch=3))
    assert modes == [True, True, False, True, True, False]
