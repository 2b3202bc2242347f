"""--debug: any config in seconds, whatever its model is made of."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml

from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.fit.debug import choose_width
from vitkit.fit.run_config import CLI
from vitkit.fit.run_folder import claim_folder
from vitkit.models import ViT
from vitkit.nn import Attend, Attention, Block, Encoder, Rotary
from vitkit.tasks.task import Task

CONFIGS = Path(__file__).parents[2] / "configs"
WHOLE = sorted(path.stem for path in CONFIGS.glob("*.yaml") if "\n    model:\n      class_path" in path.read_text())
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--threads=1")


def head_widths(model: torch.nn.Module) -> list[int]:
    """Return the width of a head in each Encoder of a model."""
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    return [cast(Attention, cast(Block, encoder.blocks[0]).attn.f).head_dim for encoder in encoders]


def test_some_configs_hold_whole_models() -> None:
    assert len(WHOLE) > 12 and {"classify_digits", "contrast_cc3m_b32", "pretrain_mae_imagenet_b16"} < {*WHOLE}


@pytest.mark.parametrize("name", [name for name in WHOLE if not name.startswith("finetune_mae")])
def test_every_config_is_shrunk_and_has_gradients(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = (
        ["--data.train=mnist5k", "--data.reading.columns=[image, label]"]
        if "cifar" in name
        else [f"--data.train={'python' if name.startswith('language') else 'digits'}"]
    )
    cli = CLI([f"--config={CONFIGS / name}.yaml", "--debug", "--data.val=null", "--data.workers=0", *data, *QUIET])
    assert capsys.readouterr().out.startswith("debug: trainer.max_epochs ")
    task = cast(Task, cli.model)
    encoders = [module for module in task.modules() if isinstance(module, Encoder)]
    assert encoders and all(encoder.depth == 1 and encoder.heads <= 2 for encoder in encoders)
    written = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())["model"]["init_args"]["model"]["init_args"]
    parts = [part for part in (written.get("image", {}).get("init_args"), written.get("text", {}).get("init_args"))]
    sizes = [part["encoder"]["init_args"] for part in parts if part]
    sizes = sizes or [written[part]["init_args"] for part in ("encoder", "decoder") if part in written]
    assert head_widths(task) == [size["dim"] // size["heads"] for size in sizes]
    task.bind(cli.datamodule)
    batch = next(iter(cli.datamodule.train_dataloader()))
    assert len(batch.indices) <= 8
    task.compute_loss(batch).total.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in task.parameters())


@pytest.mark.parametrize(
    ("dim", "heads", "width"),
    [(64, 4, 32), (768, 12, 128), (192, 3, 128), (64, 1, 64), (12, 4, 12), (24, 4, 24), (33, 11, 6), (50, 3, 50)],
)
def test_width_keeps_head_width_and_divisors(dim: int, heads: int, width: int) -> None:
    """12 and 24: two heads would be 6 and 12 wide, which a table of two axes, or a pool of 8 heads, would not take."""
    assert choose_width(dim, heads) == width


def hard(config: Path, folder: Path) -> Path:
    content: dict[str, Any] = yaml.safe_load(config.read_text())
    content["model"]["init_args"]["freeze"] = [
        *("embed.*", "encoder.blocks.[1-3].attn.*", "encoder.blocks.11.mlp.*"),
        *("encoder.blocks.1?.*.norm.*", "encoder.blocks.?.mlp.norm.bias"),
    ]
    content["model"]["init_args"]["model"] = {
        "class_path": "vitkit.models.ViT",
        "init_args": {
            "patch_size": [4, 4],
            "pool": {"class_path": "vitkit.nn.Attend", "init_args": {"heads": 6, "mlp": "vitkit.nn.SwiGLU"}},
            "table": "vitkit.nn.Sinusoidal",
            "encoder": {
                "class_path": "vitkit.nn.Encoder",
                "init_args": {
                    "dim": 144,
                    "depth": 12,
                    "heads": 12,
                    "attention": {
                        "class_path": "vitkit.nn.Attention",
                        "init_args": {"kv_heads": 4, "qk_norm": "vitkit.nn.LayerNorm"},
                    },
                    "mlp": {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": 2.5}},
                    "position": {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2}},
                    "residual": {"class_path": "vitkit.nn.PreNorm", "init_args": {"scale": 0.1}},
                },
            },
        },
    }
    content["trainer"] |= {"val_check_interval": 20, "max_steps": 1000, "min_epochs": 2}
    content["model"]["init_args"]["schedule"] = {
        "class_path": "vitkit.optim.InverseSquareRoot",
        "init_args": {"warmup": 500, "cooldown": 100},
    }
    path = folder / "hard.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_debug_run_is_short_in_a_folder_of_its_own(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = hard(config, tmp_path)
    assert main(["fit", f"--config={path}", "--debug"]) == 0
    out = capsys.readouterr().out
    told = ("model.model.encoder.depth 12 -> 1", "model.model.pool.heads 6 -> 2", "data.batch 48 -> 8")
    assert all(change in out.splitlines()[0] for change in told)
    run = tmp_path / "runs" / "hard-debug"
    report = json.loads((run / "report.json").read_text())
    assert (report["steps"], report["epochs"], report["pictures"]) == (3, 1, 16)
    model = open_model(run / "model").model
    assert isinstance(model, ViT) and (model.encoder.dim, model.encoder.heads, head_widths(model)) == (24, 2, [12])
    attention = model.get_submodule("encoder.blocks.0.attn.f")
    assert isinstance(attention, Attention) and attention.widths == [2, 1, 1]
    assert isinstance(model.encoder.position, Rotary) and isinstance(model.pool, Attend)
    assert cast(Attention, model.pool.attn).widths[0] == 2
    assert main(["fit", f"--config={path}", f"--run={run}", "--model.schedule.warmup=0"]) == 1
    assert "run must go on as it began" in capsys.readouterr().err


def test_invalid_model_stays_invalid(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attention = '{"class_path": "vitkit.nn.Attention", "init_args": {"kv_heads": 3}}'
    options = [f"--config={config}", f"--run={tmp_path / 'run'}", f"--model.model.encoder.attention={attention}"]
    assert main(["fit", *options, "--debug"]) == 1
    assert "heads must be a multiple of kv_heads" in capsys.readouterr().err


def test_debug_run_starts_anew_with_any_options(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run-debug"
    options = ["fit", f"--config={config}", f"--run={tmp_path / 'run'}", "--debug"]
    assert main(options) == 0
    (run / "last.ckpt.partial").write_text("of one that was killed")
    wider = "--model.model.encoder.dim=24"
    assert main([*options, wider]) == 0
    assert "is finished" not in capsys.readouterr().out and json.loads((run / "report.json").read_text())["steps"] == 3
    assert len((run / "metrics.csv").read_text().splitlines()) == 1 + 3 + 1  # names, steps, a validation
    assert cast(ViT, open_model(run / "model").model).encoder.dim == 24
    assert not (run / "last.ckpt.partial").exists()


def test_debug_run_keeps_the_folder_of_the_real_run(config: Path, tmp_path: Path) -> None:
    run, options = tmp_path / "run", [f"--config={config}", f"--run={tmp_path / 'run'}"]
    claim_folder(CLI(options))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    cli = CLI([*options, "--debug"])
    claim_folder(cli)
    assert cli.run == tmp_path / "run-debug" and cli.run.is_dir()
    assert before and {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("real", [True, False])
def test_debug_run_removes_only_files_of_debug_runs(real: bool, config: Path, tmp_path: Path) -> None:
    """A real run may be called so too, and a debug run's folder hold what somebody put there."""
    run, options = tmp_path / "run-debug", [f"--config={config}", f"--run={tmp_path / 'run'}"]
    if real:
        claim_folder(CLI([options[0], f"--run={run}"]))
    else:
        claim_folder(CLI([*options, "--debug"]))
        (run / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    reason = "which no debug run wrote" if real else "which holds notes.txt"
    with pytest.raises(ValueError, match=f"of a debug run, got run={run}, {reason}; choose another --run"):
        claim_folder(CLI([*options, "--debug"]))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_equal_widths_stay_equal(tmp_path: Path) -> None:
    """Of two encoders one may read the other's tokens, whose width it then names."""
    content: dict[str, Any] = yaml.safe_load((CONFIGS / "pretrain_mae_mnist5k.yaml").read_text())
    arguments = content["model"]["init_args"]["model"]["init_args"]
    arguments["encoder"]["init_args"] |= {"dim": 96, "heads": 12}
    arguments["decoder"]["init_args"] |= {"dim": 96, "heads": 6}
    (tmp_path / "mae.yaml").write_text(yaml.safe_dump(content))
    cli = CLI([f"--config={tmp_path / 'mae.yaml'}", "--data.train=digits", "--debug", *QUIET])
    encoders = [module for module in cli.model.modules() if isinstance(module, Encoder)]
    assert [(encoder.dim, encoder.heads) for encoder in encoders] == [(32, 4), (32, 2)]
    assert head_widths(cli.model) == [8, 16]


def test_pretrained_model_is_not_shrunk(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--model.schedule.warmup=0"]
    assert main(["fit", f"--config={config}", f"--run={run}", *short]) == 0
    capsys.readouterr()
    options = ["--debug", f"--pretrained={run / 'model'}", f"--run={tmp_path / 'more'}"]
    assert main(["fit", f"--config={config}", *options]) == 0
    assert "the head too" in (out := capsys.readouterr().out) and "depth" not in out.splitlines()[0]
    assert len(cast(ViT, open_model(tmp_path / "more-debug" / "model").model).encoder.blocks) == 2
    assert json.loads((tmp_path / "more-debug" / "report.json").read_text())["steps"] == 3
