"""Pretrained, fine-tuned, used: each command takes the folder that the one before it wrote."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.commands.describe import open_network
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Conversion
from vitkit.convert.write import WRITERS
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.fit.folder_options import read_folders
from vitkit.fit.initial_weights import (
    CLASSIFY,
    TRAININGS,
    Training,
    describe_tokenizer,
    describe_towers,
    describe_whole,
)
from vitkit.fit.run_config import CLI, to_yaml_types
from vitkit.models import CLIP, MAE, TextTower, ViT
from vitkit.nn import Mean
from vitkit.support.files import write_json
from vitkit.tasks.classify import Classify
from vitkit.tasks.task import Task

RECIPE = Path(__file__).parents[2] / "configs" / "finetune_folder.yaml"
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--data.workers=0", "--threads=1")
STEP = ("--trainer.max_epochs=1", "--trainer.max_steps=1", "--model.schedule.warmup=0", "--report.baselines=false")
PREPROCESS = Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3, crop=0.9)
RECONSTRUCT = "vitkit.tasks.reconstruction.Reconstruct"


def encoder(dim: int) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": dim, "depth": 2, "heads": 2}}


CONFIG = {
    "class_path": "vitkit.models.MAE",
    "init_args": {
        "encoder": encoder(16),
        "decoder": encoder(8),
        "image_size": [16, 24],
        "patch_size": [8, 8],
        "prefix": 2,
        "table": "vitkit.nn.Learned",
        "ratio": 0.5,
    },
}


@pytest.fixture
def mae(tmp_path: Path) -> Path:
    network = model_config.build_model(CONFIG)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save(tmp_path / "mae", Bundle(network, CONFIG, PREPROCESS))
    return tmp_path / "mae"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name, level in {"dark": 40, "light": 200}.items():
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            pixels = level + generator.integers(-30, 30, (20, 28, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_mae_is_finetuned_and_predicts(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", f"--run={run}"]
    assert main(["fit", *options, *QUIET, *STEP, "--model.lr=0"]) == 0
    out = capsys.readouterr().out
    assert f"weights of {mae}\n  the decoder is left behind\n  a new head for 2 classes\n" in out
    bundle = open_model(run / "model")
    network, preprocess, classes = bundle.model, bundle.preprocess, bundle.class_names
    before = open_model(mae).model
    assert isinstance(network, ViT) and isinstance(network.pool, Mean) and isinstance(before, MAE)
    assert (classes, preprocess) == (("dark", "light"), PREPROCESS)
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    features = before.double().features(images)
    assert_close(network.double().features(images), features, rtol=0, atol=1e-12)
    assert_close(network(images), network.head(features[:, 2:].mean(1)), rtol=0, atol=1e-12)
    assert main(["predict", str(run / "model"), str(pictures), "--format=jsonl", "--device=cpu"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 12 and all({*row["labels"]} == {"dark", "light"} for row in rows)
    assert main(["evaluate", str(run / "model"), str(pictures), "--no-probe", "--device=cpu"]) == 0
    assert "top-1 accuracy" in capsys.readouterr().out


def test_layer_decay_of_a_pretrained_encoder(mae: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", *QUIET]
    assert main(["fit", *options, "--print_groups", "--model.lr=1", "--model.layer_decay=0.5"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("model.")]
    assert not [line[0] for line in lines if "decoder" in line[0]]
    found = {line[0].removeprefix("model."): (line[-2], float(line[-1])) for line in lines}
    assert found["embed.patches.weight"] == ("0.05", 0.125)
    assert found["embed.prefix"] == found["embed.table.weight"] == ("0", 0.125)
    assert found["encoder.blocks.0.mlp.f.up.weight"] == ("0.05", 0.25)
    assert found["encoder.blocks.1.mlp.norm.weight"] == ("0", 0.5)
    assert found["head.weight"] == ("0.05", 1) and found["encoder.norm.bias"] == ("0", 1)


def test_weights_adapt_to_size_and_channels(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", f"--run={tmp_path / 'run'}"]
    grey = [
        "--data.preprocess.size=[24, 32]",
        "--data.preprocess.mean=[0.5]",
        "--data.preprocess.std=[0.25]",
        "--model.model.encoder.drop_path=0.1",
    ]
    assert main(["fit", *options, *QUIET, *STEP, *grey]) == 0
    out = capsys.readouterr().out
    assert "embed.patches from 3 to 1 channels" in out and "embed.table from (2, 3) to (3, 4)" in out
    assert open_model(tmp_path / "run" / "model").model(torch.zeros(1, 1, 24, 32)).shape == (1, 2)


def test_mae_is_pretrained_further(mae: Path, pictures: Path, tmp_path: Path) -> None:
    recipe = further(tmp_path, pictures)
    subject, *_ = open_network(str(recipe), [f"--pretrained={mae}", *QUIET])
    assert isinstance(subject.model, MAE) and subject.model.ratio == 0.5
    assert_close(subject.model.state_dict(), open_model(mae).model.state_dict(), rtol=0, atol=0)
    assert main(["fit", f"--config={recipe}", f"--pretrained={mae}", f"--run={tmp_path / 'run'}", *QUIET]) == 0
    found = open_model(tmp_path / "run" / "model")
    assert isinstance(found.model, MAE) and (found.class_names, found.preprocess) == ((), PREPROCESS)


def test_classifier_is_not_pretrained_further(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [f"--config={RECIPE}", f"--pretrained={mae}", f"--data.train={pictures}", f"--run={tmp_path / 'run'}"]
    assert main(["fit", *options, *QUIET, *STEP]) == 0
    capsys.readouterr()
    recipe, model = further(tmp_path, pictures), tmp_path / "run" / "model"
    assert main(["fit", f"--config={recipe}", f"--pretrained={model}", f"--run={tmp_path / 'more'}", *QUIET]) == 1
    error = capsys.readouterr().err
    assert re.search(rf"^error: pretrained must be an MAE to be pretrained further, got [\w.]+ViT in {model}$", error)
    assert not (tmp_path / "more").exists()


def further(folder: Path, pictures: Path) -> Path:
    """A recipe for one more step of pretraining, on pictures without labels."""
    task = {"class_path": RECONSTRUCT, "init_args": {"lr": 1e-3}}
    data = {"class_path": "vitkit.data.images.Images", "init_args": {"train": str(pictures), "unlabelled": True}}
    trainer = {"max_epochs": 1, "max_steps": 1}
    (folder / "further.yaml").write_text(yaml.safe_dump({"model": task, "data": data, "trainer": trainer}))
    return folder / "further.yaml"


def test_last_given_task_counts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {class_path: a.A, init_args: {lr: 1}}")
    (tmp_path / "b.yaml").write_text("model: {init_args: {lr: 2}}\ntrainer: {}")
    (tmp_path / "c.yaml").write_text("model: {class_path: null}")
    a, b, c = (f"--config={tmp_path / name}.yaml" for name in "abc")
    for arguments, task in (
        ([a, b], "a.A"),
        ([a, "--model=b.B"], "b.B"),
        ([a, "--unknown", "x", "--model.class_path", "b.B", "--help"], "b.B"),
        (["--model", "b.B", "-c", a.removeprefix("--config=")], "a.A"),
        ([a, '--model={"class_path": "c.C"}'], "c.C"),
        ([a, "--model={class_path: c.C, init_args: {lr: 1}}"], "c.C"),
        ([a, "--model=Short", "--model.init_args.lr=1"], "Short"),
        (["--config={model: e.E}", b], "e.E"),
        (["--config={model: {class_path: d.D}}"], "d.D"),
        ([a, c], None),
        ([b], None),
    ):
        assert read_folders(arguments).task == task, arguments
    assert read_folders([a, "--data", "b.B", "--config={data: {class_path: c.C}}"]).data == "c.C"
    folders = read_folders([a, "-c={pretrained_text: x}", "--model.model.text.outputs=3", "--pretrained_text=y"])
    assert (folders.whole, folders.towers, folders.outputs, folders.configs) == (None, {"text": "y"}, {"text": 3}, 2)
    assert read_folders([a, "--pretrained"]).whole is None  # which the whole parser refuses


@pytest.mark.parametrize(
    "option",
    [
        "--model.model.text.outputs=24",
        "--model.model.text.init_args.outputs=24",
        "--model.init_args.model.init_args.text.init_args.outputs=24",
        "--model.model.text={init_args: {outputs: 24}}",
        '--model={"init_args": {"model": {"init_args": {"text": {"init_args": {"outputs": 24}}}}}}',
    ],
)
def test_outputs_of_a_tower_are_read_in_any_spelling(option: str) -> None:
    assert read_folders([option]).outputs == read_folders(option.split("=")).outputs == {"text": 24}


class Adapted(Classify): ...


class Unrelated(Task): ...


@pytest.mark.parametrize("task", ["Reconstruct", RECONSTRUCT, f"{{class_path: {RECONSTRUCT}}}"])
def test_task_is_read_in_any_spelling(task: str, mae: Path) -> None:
    config = describe_whole(mae, read_folders([f"--model={task}"]).task)
    assert config["model"]["class_path"] == RECONSTRUCT
    assert config["model"]["init_args"]["model"]["class_path"].endswith("MAE")


def test_custom_task_is_a_subclass_or_comes_with_data(mae: Path) -> None:
    path = f"{__name__}.Unrelated"
    model = describe_whole(mae, f"{__name__}.Adapted")["model"]
    assert (model["class_path"], model["init_args"]["model"]["class_path"]) == (CLASSIFY.task, "vitkit.models.ViT")
    config = describe_whole(mae, path, CLASSIFY.data)
    assert (config["model"]["class_path"], config["data"]["class_path"]) == (path, CLASSIFY.data)
    assert config["model"]["init_args"]["model"]["class_path"].endswith("MAE")
    with pytest.raises(ValueError, match=rf"model must be .* or a subclass of one .* got model={path}; a task of"):
        describe_whole(mae, path)
    with pytest.raises(ValueError, match=r"got model=vitkit.tasks.classify.Clasify; did you mean .*Classify\?"):
        describe_whole(mae, "vitkit.tasks.classify.Clasify")


def test_model_without_a_known_task_is_refused(tmp_path: Path) -> None:
    folder = write_text_folder(tmp_path / "texts")
    message = (
        rf"pretrained must be a model with a known task \(ViT, MAE, CLIP, TextDecoder\), got TextTower in {folder}; "
        "give --model and --data, or take pretrained_text$"
    )
    for options in ([], ["--model=a.Complete"], ["--data=a.Corpus"], [f"--model={CLASSIFY.task}"]):
        folders = read_folders(options)
        with pytest.raises(ValueError, match=message):
            describe_whole(folder, folders.task, folders.data)


def test_model_of_timm_is_finetuned_by_its_name(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"encoder": encoder(16), "image_size": [16, 24], "patch_size": [8, 8], "outputs": 3}
    config = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    state = model_config.build_model(config).state_dict()
    (tmp_path / "timm").mkdir()
    WRITERS["timm"].write(Conversion(config, state, PREPROCESS, ("ant", "bee", "cow")), tmp_path / "timm")
    source, run = f"timm:{tmp_path / 'timm'}", tmp_path / "run"
    options = [f"--config={RECIPE}", f"--pretrained={source}", f"--data.train={pictures}", f"--run={run}"]
    assert main(["fit", *options, *QUIET, *STEP, "--model.lr=0"]) == 0
    assert f"weights of {source}\n  a new head for 2 classes\n" in capsys.readouterr().out
    bundle = open_model(run / "model")
    assert (bundle.class_names, bundle.preprocess) == (("dark", "light"), PREPROCESS)
    trunk = {name: tensor for name, tensor in bundle.model.state_dict().items() if not name.startswith("head.")}
    assert len(trunk) == len(state) - 2
    assert_close(trunk, {name: state[name] for name in trunk}, rtol=0, atol=0)
    assert yaml.safe_load((run / "config.yaml").read_text())["pretrained"] == source


def test_tokenizer_of_another_library_is_given_by_its_file(tmp_path: Path) -> None:
    for options in ({}, {"vocabulary": tmp_path / "tokenizer.json", "clean": "lower", "pad": 1, "whole": True}):
        tokenizer = Tokenizer(9, **options)
        arguments = describe_tokenizer(tokenizer, "hf:me/clip")["tokenizer"]
        assert Tokenizer(**arguments).to_dict() == tokenizer.to_dict()
        assert Tokenizer(**arguments).name == tokenizer.name
    with pytest.raises(ValueError, match="import it into a folder: vitkit import hf:me/clip --out DIR"):
        describe_tokenizer(Tokenizer.from_text("{}"), "hf:me/clip")


def test_run_folder_is_referred_to_its_model(tmp_path: Path):
    (tmp_path / "model").mkdir()
    for place in (tmp_path, tmp_path / "model"):
        (place / "config.yaml").write_text("trainer: {accelerator: auto}")
    for name in ("classes.json", "model.safetensors"):
        (tmp_path / "model" / name).touch()
    with pytest.raises(ValueError, match=f"got pretrained={tmp_path}; try {tmp_path}/model"):
        CLI(["--pretrained", str(tmp_path)])


def test_run_without_a_config_needs_a_name(mae: Path, pictures: Path) -> None:
    options = [f"--pretrained={mae}", f"--data.train={pictures}", "--model.lr=1", *QUIET]
    with pytest.raises(ValueError, match="run must be given where no config has a name, got run=None"):
        CLI(options)
    assert isinstance(CLI([*options, "--run=run"]).model.get_submodule("model"), ViT)


TEXT = {
    "class_path": "vitkit.models.TextTower",
    "init_args": {"encoder": {**encoder(16)}, "vocabulary": 300, "context": 9, "outputs": 7, "pool": "vitkit.nn.Last"},
}


def write_text_folder(folder: Path) -> Path:
    """The config and the tokenizer of a model that reads no images."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(TEXT))
    write_json(folder / "text.json", {"vocabulary": "clip", "context": 9, "whole": True})
    return folder


def test_text_model_has_no_preprocessing(tmp_path: Path) -> None:
    folder = write_text_folder(tmp_path / "texts")
    config = describe_towers(read_folders([f"--pretrained_text={folder}", "--model.model.image.outputs=5"]))
    text = config["model"]["init_args"]["model"]["init_args"]["text"]["init_args"]
    assert (text["context"], text["outputs"], text["pool"]["class_path"]) == (9, 5, "vitkit.Last")
    assert config["data"]["init_args"] == {"tokenizer": {"context": 9, "whole": True, "vocabulary": "clip"}}
    whole = describe_whole(folder, "a.Complete", "a.Corpus")
    assert (whole["model"]["class_path"], whole["data"]["class_path"]) == ("a.Complete", "a.Corpus")
    assert whole["data"]["init_args"] == config["data"]["init_args"]
    with pytest.raises(ValueError, match="pretrained_image must be the folder of a model with an image tower, got"):
        describe_towers(read_folders([f"--pretrained_image={folder}"]))
    (folder / "text.json").unlink()
    with pytest.raises(ValueError, match="pretrained must be a model folder, timm:NAME, .* got"):
        describe_whole(folder, None)


@pytest.mark.parametrize("vocabulary", ["bytes", "clip"])
def test_data_take_the_special_ids_of_a_folder(vocabulary: str, tmp_path: Path) -> None:
    folder, text = write_text_folder(tmp_path / "texts"), {"context": 9, "whole": True, "vocabulary": vocabulary}
    for special in ([], ["<image>"]):
        write_json(folder / "text.json", text | ({"special": special} if special else {}))
        arguments = describe_towers(read_folders([f"--pretrained_text={folder}"]))["data"]["init_args"]["tokenizer"]
        before = Tokenizer.from_folder(folder)
        assert before is not None
        assert Tokenizer(**arguments).to_dict() == before.to_dict()
        assert arguments["vocabulary"] == (str(folder) if special else vocabulary)


def test_training_is_registered_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, complete = (
        write_text_folder(tmp_path / "texts"),
        Training("a.Complete", "a.Corpus", requirement="be a TextTower"),
    )
    monkeypatch.setitem(TRAININGS, TextTower, complete)
    for task in (None, "a.Complete"):
        config = describe_whole(folder, task)
        assert (config["model"]["class_path"], config["data"]["class_path"]) == ("a.Complete", "a.Corpus")
    with pytest.raises(
        ValueError, match=f"pretrained must be a TextTower, got .*TextTower in {folder}; {CLASSIFY.task}"
    ):
        describe_whole(folder, CLASSIFY.task)


def test_decoder_starts_from_another_mae(
    mae: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = yaml.safe_load(further(tmp_path, pictures).read_text())
    model = {"class_path": "vitkit.models.MAE", "init_args": {**CONFIG["init_args"], "decoder": encoder(32)}}
    del model["init_args"]["image_size"]
    config["model"]["init_args"] |= {"model": model, "lr": 0.0}
    config["data"]["init_args"]["preprocess"] = {"size": [16, 24], "mean": [0.5] * 3, "std": [0.5] * 3}
    (tmp_path / "decoder.yaml").write_text(yaml.safe_dump(config))
    options = [f"--config={tmp_path / 'decoder.yaml'}", f"--pretrained_decoder={mae}", f"--run={tmp_path / 'run'}"]
    assert main(["fit", *options, *QUIET, "--ema.decay=0"]) == 0
    assert f"decoder tower: weights of {mae}\n" in capsys.readouterr().out
    before, after = (open_model(folder).model for folder in (mae, tmp_path / "run" / "model"))
    assert isinstance(before, MAE) and isinstance(after, MAE)
    assert_close(after.decoder.state_dict(), before.decoder.state_dict(), rtol=0, atol=0)
    assert not torch.equal(after.embed.patches.weight, before.embed.patches.weight)


@pytest.mark.parametrize("tower", ["image", "text"])
def test_describe_uses_the_weights_of_a_tower(tower: str, clip_folder: Path) -> None:
    options = [f"--pretrained_{tower}={clip_folder}", *QUIET]
    bundle, _ = open_network(str(RECIPE.with_name("contrast_digits.yaml")), options)
    before, after = (model.get_submodule(f"{tower}.encoder") for model in (open_model(clip_folder).model, bundle.model))
    assert_close(after.state_dict(), before.state_dict(), rtol=0, atol=0)


def test_each_tower_brings_its_inputs_alone(clip_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(clip_folder, tmp_path / "other")
    values = json.loads((other / "preprocess.json").read_text())
    (other / "preprocess.json").write_text(json.dumps(values | {"mean": [0.9, 0.9, 0.9]}))
    text = json.loads((other / "text.json").read_text())
    (other / "text.json").write_text(json.dumps(text | {"context": text["context"] + 3}))
    recipe = str(RECIPE.with_name("contrast_digits.yaml"))
    cli = CLI([f"--config={recipe}", f"--pretrained_image={clip_folder}", f"--pretrained_text={other}", *QUIET])
    data = to_yaml_types(cli.config)["data"]["init_args"]
    assert (data["preprocess"]["mean"], data["tokenizer"]["context"]) == (values["mean"], text["context"] + 3)


def test_tower_overrides_configs_and_options_override_both(
    clip_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPE.with_name("contrast_digits.yaml")
    (tmp_path / "over.yaml").write_text("data: {init_args: {preprocess: {crop: 0.5}}}")
    configs = [f"--config={recipe}", "--data.preprocess.crop=0.7", "-c", str(tmp_path / "over.yaml")]
    options = [f"--pretrained_image={clip_folder}", f"--pretrained_text={clip_folder}", *QUIET]
    cli = CLI(
        [*configs, *options, "--data.preprocess.interpolation=nearest", "--model.model.image.encoder.drop_path=0.25"]
    )
    data = to_yaml_types(cli.config)["data"]["init_args"]
    preprocess = data["preprocess"]
    assert (preprocess["size"], preprocess["crop"], preprocess["interpolation"]) == ([16, 24], 1.0, "nearest")
    assert data["tokenizer"]["context"] == 12
    assert cli.run == Path("runs/contrast_digits-over")
    model = cli.model.get_submodule("model")
    assert isinstance(model, CLIP) and model.image.grid((16, 24)) == (2, 3) and model.image.encoder.dim == 32
    assert type(model.image.pool).__name__ == "First"  # and not the Mean of the recipe
    assert cli.portable["init_args"]["image"]["init_args"]["encoder"]["init_args"]["drop_path"] == 0.25
