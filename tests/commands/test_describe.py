import argparse
import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.commands.describe import ExampleImage, make_examples
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.inference.stages import count_parameters, list_anomalies, measure_stages
from vitkit.models import MAE, SIZES, TextDecoder, ViT, encoder
from vitkit.nn import Attend, Attention, Encoder, ExplicitCore, First, FusedCore, NoPositions, RelativeBias, Rotary

NETWORK = """
class_path: vitkit.models.ViT
init_args:
  patch_size: [4, 2]
  {more}
  encoder: {{class_path: vitkit.nn.Encoder, init_args: {{dim: 32, depth: 2, heads: 4}}}}
"""


def tiny(**slots) -> ViT:
    return ViT(Encoder(32, 2, 4, **slots), (24, 40), (8, 8), outputs=5, prefix=3).eval()


def fit_config(folder: Path, more: str = "") -> Path:
    network = NETWORK.format(more=more).replace("\n", "\n      ")
    data = "{train: digits, preprocess: {size: [8, 8], mean: [0.5], std: [0.5]}}"
    task = f"class_path: vitkit.tasks.classify.Classify\n  init_args:\n    lr: 1e-3\n    model:{network}"
    path = folder / "fit.yaml"
    path.write_text(f"model:\n  {task}\ndata:\n  class_path: vitkit.data.images.Images\n  init_args: {data}\n")
    return path


@pytest.mark.parametrize("patch", [14, 16])
@pytest.mark.parametrize("size", SIZES)
def test_formula_counts_every_parameter(size, patch):
    with torch.device("meta"):
        model = ViT(encoder(size), patch_size=(patch, patch))
    assert count_parameters(size, patch) == sum(parameter.numel() for parameter in model.parameters())


def test_stages_are_the_steps_of_the_forward_pass():
    stages = measure_stages(tiny(), torch.randn(2, 3, 24, 40))
    assert [(stage.name, stage.shape) for stage in stages] == [
        ("embed.patches", (2, 32, 3, 5)),
        ("embed.table", (1, 15, 32)),
        ("embed", (2, 18, 32)),
        ("encoder.blocks.0", (2, 18, 32)),
        ("encoder.blocks.1", (2, 18, 32)),
        ("encoder.norm", (2, 18, 32)),
        ("pool", (2, 32)),
        ("head", (2, 5)),
    ]


def test_mean_and_variance_are_those_of_the_output():
    model, images = tiny(), torch.randn(2, 3, 24, 40)
    stage = measure_stages(model, images)[-1]
    logits = model(images).double()
    assert_close(
        torch.tensor([stage.mean, stage.variance]).double(), torch.stack([logits.mean(), logits.var(correction=0)])
    )


@pytest.mark.parametrize("slots", [{}, {"position": lambda *sizes: RelativeBias(*sizes, axes=2, prefix=3)}])
@pytest.mark.parametrize("pool", [First, partial(Attend, heads=4)])
def test_every_parameter_belongs_to_one_stage(slots, pool):
    model = tiny(**slots)
    model.pool = pool(32, 3).eval()
    stages = measure_stages(model, torch.randn(1, 3, 24, 40))
    assert sum(stage.parameters for stage in stages) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("core", [FusedCore, ExplicitCore])
def test_flops_are_two_for_each_multiply_add(core):
    model = tiny()
    for module in model.modules():
        if isinstance(module, Attention):
            module.core = core()
    flops = {stage.name: stage.flops for stage in measure_stages(model, torch.randn(2, 3, 24, 40)) if stage.flops}
    T, D = 18, 32
    block = 2 * 2 * (12 * T * D**2 + 2 * T**2 * D)  # two images; matrices, then q k' and weights times v
    assert flops == {
        "embed.patches": 2 * 2 * 15 * 192 * D,
        "encoder.blocks.0": block,
        "encoder.blocks.1": block,
        "head": 2 * 2 * D * 5,
    }


def test_model_is_unchanged():
    model, images = tiny(), torch.randn(1, 3, 24, 40)
    before, modes = model(images), [module.training for module in model.modules()]
    measure_stages(model, images)
    with pytest.raises(ValueError, match="image_size"):
        measure_stages(model, torch.randn(1, 3, 25, 40))
    assert torch.equal(model(images), before) and [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_healthy_model_has_no_anomalies():
    assert list_anomalies(measure_stages(tiny(), torch.randn(1, 3, 24, 40))) == []


def test_first_stage_that_is_not_finite_is_an_anomaly():
    model = tiny()
    nn.init.constant_(model.get_parameter("encoder.blocks.1.mlp.norm.weight"), math.nan)
    assert list_anomalies(measure_stages(model, torch.randn(1, 3, 24, 40))) == [
        "encoder.blocks.1 is not finite, nor are the later stages"
    ]


def test_exploding_stage_is_an_anomaly():
    model = tiny()
    nn.init.normal_(model.get_parameter("encoder.blocks.1.mlp.f.down.weight"), std=1e4)
    (note,) = list_anomalies(measure_stages(model, torch.randn(1, 3, 24, 40)))
    assert note.startswith("encoder.blocks.1 has ") and note.endswith("times the standard deviation of embed")


def test_constant_stage_is_an_anomaly():
    model = tiny()
    nn.init.zeros_(model.get_parameter("head.weight"))
    assert list_anomalies(measure_stages(model, torch.randn(1, 3, 24, 40))) == [
        "head is constant: the same number everywhere"
    ]


def test_any_network_can_be_described():
    stages = measure_stages(nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten()), torch.randn(1, 3, 4, 4))
    assert [(stage.name, stage.parameters) for stage in stages] == [("Sequential", 52)]


def test_size_is_described_with_a_photograph(capsys):
    assert main(["describe", "ti/16", "--size", "32", "48"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "flower.jpg" in lines[0] and "1 x 7 x 192" in lines[5]
    assert lines[-1] == "by formula: 5,717,224 parameters" and "5,717,224" in lines[-4]


def test_config_of_fit_is_described_with_its_data(tmp_path, capsys):
    assert main(["describe", str(fit_config(tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "digits[0]" in lines[0]
    assert "1 x 32 x 2 x 4" in lines[3] and "288" in lines[3]  # 32 (1 x 4 x 2) weights and 32 biases
    assert "1 x 10" in lines[10]


def test_config_takes_the_options_of_fit(tmp_path, capsys):
    overrides = ["--model.model.encoder.depth=3", "--data.preprocess.size=[16, 8]"]
    assert main(["describe", str(fit_config(tmp_path)), *overrides]) == 0
    out = capsys.readouterr().out
    assert "encoder.blocks.2" in out and "1 x 32 x 4 x 4" in out
    assert main(["describe", "ti/16", *overrides]) == 1
    assert capsys.readouterr().err == f"error: only a config takes further options, got {' '.join(overrides)}\n"


@pytest.mark.parametrize(
    ("text", "message"), [("model: [", "config"), ("trainer: {}", "required"), ("widht: 3", "there is no option widht")]
)
def test_invalid_config_is_a_one_line_error(tmp_path, capsys, text, message):
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main(["describe", str(tmp_path / "wrong.yaml")])
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_image_option_replaces_the_image_of_the_data(tmp_path, capsys):
    Image.new("RGB", (30, 20), "white").save(tmp_path / "white.png")
    arguments = ["describe", str(fit_config(tmp_path)), "--image"]
    assert main([*arguments, str(tmp_path / "white.png")]) == 0
    assert "white.png" in capsys.readouterr().out
    assert main([*arguments, str(tmp_path / "none.png")]) == 1
    assert "none.png" in capsys.readouterr().err


def mae() -> MAE:
    return MAE(Encoder(32, 2, 4), Encoder(16, 1, 2), (24, 40), (8, 8), prefix=3).eval()


def test_mae_encodes_visible_patches_and_decodes_all():
    model = mae()
    stages = measure_stages(model, torch.randn(2, 3, 24, 40))
    assert [(stage.name, stage.shape) for stage in stages if "table" not in stage.name] == [
        ("encoder.blocks.0", (2, 3 + 3, 32)),  # int(15 / 4) of 15 patches, and the prefix
        ("encoder.blocks.1", (2, 3 + 3, 32)),
        ("encoder.norm", (2, 3 + 3, 32)),
        ("decoder.embed", (2, 3 + 3, 16)),
        ("decoder.encoder.blocks.0", (2, 3 + 15, 16)),
        ("decoder.encoder.norm", (2, 3 + 15, 16)),
        ("decoder.pixels", (2, 12, 192)),
        ("decoder", (2, 12, 192)),
        ("MAE", (2, 12, 192)),
    ]
    T, D = 6, 32
    flops = {stage.name: stage.flops for stage in stages}
    assert flops["encoder.blocks.1"] == 2 * 2 * (12 * T * D**2 + 2 * T**2 * D)
    assert sum(stage.parameters for stage in stages) == sum(parameter.numel() for parameter in model.parameters())
    assert list_anomalies(stages) == []


def test_hidden_patches_and_the_random_state_do_not_change():
    model, images = mae(), torch.randn(1, 3, 24, 40)
    state = torch.get_rng_state()
    first = measure_stages(model, images)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert measure_stages(model, images) == first


def test_mae_is_described_from_a_config_and_from_a_folder(tmp_path, capsys):
    text = fit_config(tmp_path).read_text().replace("classify.Classify", "reconstruction.Reconstruct")
    decoder = "decoder: {class_path: vitkit.nn.Encoder, init_args: {dim: 16, depth: 1, heads: 2}}\n"
    text = text.replace("models.ViT", "models.MAE").replace(
        "  patch_size: [4, 2]", f"  patch_size: [4, 2]\n        {decoder}"
    )
    (tmp_path / "mae.yaml").write_text(text)
    assert main(["describe", str(tmp_path / "mae.yaml")]) == 0
    out = capsys.readouterr().out
    assert "MAE in evaluation mode; image: digits[0]" in out and "decoder.encoder.blocks.0" in out
    assert "1 x 3 x 32" in out  # 2 of 2 x 4 patches, and CLS
    parts = [{"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}} for _ in range(2)]
    arguments = {"encoder": parts[0], "decoder": parts[1], "image_size": [16, 24], "patch_size": [8, 8]}
    config = {"class_path": "vitkit.models.MAE", "init_args": arguments}
    save(
        tmp_path / "model",
        Bundle(model_config.build_model(config), config, Preprocess((16, 24), (0.5,) * 3, (0.5,) * 3)),
    )
    assert main(["describe", str(tmp_path / "model")]) == 0
    out = capsys.readouterr().out
    assert "decoder.pixels" in out and "exports to: MAE's code, ONNX, torch.export" in out


def test_both_towers_of_a_clip_are_stages(clip_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(clip_folder), "--text", "a red heart"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"{clip_folder}: CLIP in evaluation mode; image: flower.jpg of scikit-learn; text: 'a red heart' (5 ids)"
    )
    shapes = dict(re.findall(r"^(\S+) +(\d+(?: x \d+)*) ", out, re.MULTILINE))
    assert shapes["image.embed.patches"] == "1 x 32 x 2 x 3"
    assert shapes["image.head"] == shapes["text.head"] == "1 x 24"
    assert shapes["text.embed.tokens"] == shapes["text.encoder.blocks.1"] == "1 x 5 x 32"
    model = open_model(clip_folder).model
    count = sum(parameter.numel() for parameter in model.parameters())
    assert re.search(rf"^total +{count:,} ", out, re.MULTILINE)


def test_text_tower_is_described_with_a_text(text_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(text_folder), "--text", "a red heart"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{text_folder}: TextTower in evaluation mode; text: 'a red heart' (5 ids)\n")
    shapes = dict(re.findall(r"^(\S+) +(\d+(?: x \d+)*) ", out, re.MULTILINE))
    assert (shapes["embed.tokens"], shapes["head"]) == ("1 x 5 x 32", "1 x 24")
    assert main(["describe", str(text_folder), "--image", "a.png", "--size", "8", "8"]) == 1
    assert "--image and --size must be left out for a TextTower" in capsys.readouterr().err
    assert main(["describe", "ti/16", "--text", "a red heart"]) == 1
    assert "--text must be left out for a ViT, which reads no texts" in capsys.readouterr().err


def test_absent_position_table_is_no_stage() -> None:
    model = TextDecoder(Encoder(16, 1, 2, causal=True, position=Rotary), 20, 8, table=NoPositions).eval()
    stages = measure_stages(model, torch.arange(6)[None])
    assert [stage.name for stage in stages] == ["embed.tokens", "encoder.blocks.0", "encoder.norm"]
    assert list_anomalies(stages) == []


def test_text_decoder_is_described_with_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2, "causal": True}}
    config = {"class_path": "vitkit.TextDecoder", "init_args": {"encoder": encoder, "vocabulary": 257, "context": 8}}
    model = model_config.build_model(config)
    save(tmp_path / "gpt", Bundle(model, config, None, tokenizer=Tokenizer(8, vocabulary="bytes")))
    assert main(["describe", str(tmp_path / "gpt"), "--text", "a cat"]) == 0
    out = capsys.readouterr().out
    assert "TextDecoder in evaluation mode; text: 'a cat' (6 ids)\n" in out
    count = sum(parameter.numel() for parameter in model.parameters())
    assert re.search(rf"^total +{count:,} ", out, re.MULTILINE)


class Reader(nn.Module):
    """A model with given inputs."""

    def __init__(self, *inputs: str) -> None:
        super().__init__()
        self.inputs = inputs


@pytest.mark.parametrize("inputs", [("texts", "texts"), ("images", "images"), ("images", "texts"), ("texts",)])
def test_each_input_has_its_example_in_order(inputs: tuple[str, ...]) -> None:
    size, text = (16, 24) if "images" in inputs else None, "a cat" if "texts" in inputs else None
    options = argparse.Namespace(image=None, size=size, text=text)
    bundle = Bundle(Reader(*inputs), {}, Preprocess((8, 8), (0.5,) * 3, (0.5,) * 3), tokenizer=Tokenizer(12))
    examples = make_examples(bundle, ExampleImage(Image.new("RGB", (40, 40)), "a square"), options)
    kinds = {(1, 3, 16, 24): ("images", "image: a square"), (1, 4): ("texts", "text: 'a cat' (4 ids)")}
    assert [kinds[tuple(example.inputs.shape)] for example in examples] == [
        {"images": kinds[1, 3, 16, 24], "texts": kinds[1, 4]}[kind] for kind in inputs
    ]


@pytest.mark.parametrize("inputs", [(), ("sounds", "texts")])
def test_other_inputs_are_refused(inputs: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="model must read images or texts to be described, got Reader, which reads"):
        make_examples(Bundle(Reader(*inputs), {}, None), None, argparse.Namespace(image=None, size=None, text=None))


def test_omissions_of_the_data_are_reported(tmp_path, capsys):
    for number in range(10):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(path)
    (tmp_path / "pictures" / "a" / "notes.md").write_text("")
    assert main(["describe", str(fit_config(tmp_path)), f"--data.train={tmp_path / 'pictures'}"]) == 0
    left_out = f"left out: 1 file other than images, such as {tmp_path}/pictures/a/notes.md\n"
    assert left_out in capsys.readouterr().err
