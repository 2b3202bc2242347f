"""Exported models. Shapes are not checked here, since the checker breaks the graph."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

import vitkit
from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.commands.export import USE
from vitkit.convert.open import open_model
from vitkit.convert.programs import (
    TOLERANCE,
    WRITERS,
    ProgramWriter,
    export,
    fix_size,
    prepare_images,
    write_program,
    write_torch,
)
from vitkit.convert.timm.tensors import to_vitkit
from vitkit.data.preprocess import Preprocess
from vitkit.models import ViT
from vitkit.nn import Encoder, Learned, PreNorm, bicubic

pytestmark = pytest.mark.compile
SHARED = Path(__file__).parents[3] / "shared" / "weights"
ROTARY = {"position": {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "learned table, first": {},
    "sinusoidal, rotary, mean, grey": {
        "encoder": ROTARY,
        "table": "vitkit.nn.Sinusoidal",
        "pool": "vitkit.nn.Mean",
        "channels": 1,
    },
    "registers, resampled table": {"prefix": 4, "image_size": [32, 32]},
    "no prefix, attend, swiglu, biases": {
        "prefix": 0,
        "pool": {"class_path": "vitkit.nn.Attend", "init_args": {"heads": 2}},
        "encoder": {
            "mlp": "vitkit.nn.SwiGLU",
            "position": {"class_path": "vitkit.nn.RelativeBias", "init_args": {"axes": 2}},
        },
    },
}


def save_model(folder: Path, variant: dict[str, Any]) -> Path:
    sizes = {"dim": 32, "depth": 2, "heads": 2, **variant.get("encoder", {})}
    arguments = {"image_size": [16, 24], "patch_size": [8, 8], "outputs": 5, **variant}
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": sizes}
    config = {"class_path": "vitkit.models.ViT", "init_args": {**arguments, "encoder": encoder}}
    network = model_config.build_model(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.2)
    channels = arguments.get("channels", 3)
    preprocess = Preprocess((16, 24), (0.5,) * channels, (0.25,) * channels)
    save(folder, Bundle(network, config, preprocess, list("abcde")))
    return folder


def write_images(folder: Path, count: int = 3) -> list[str]:
    folder.mkdir()
    for index in range(count):
        pixels = torch.randint(256, (30 + index, 40, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{index}.png")
    return [str(folder)]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_exported_outputs_equal_the_model_s_for_any_batch(
    variant: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, pictures = save_model(tmp_path / "model", variant), write_images(tmp_path / "pictures")
    files = export(folder, tmp_path / "out", ["onnx", "torch"], pictures)
    assert [file.file for file in files] == ["model.onnx", "model.pt2"]
    assert all(value <= TOLERANCE for file in files for value in file.differences.values())
    names = {"model.onnx", "model.pt2", "preprocess.json", "classes.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    bundle = open_model(folder)
    model, preprocess = bundle.model, bundle.preprocess
    assert Preprocess.from_dict(json.loads((tmp_path / "out" / "preprocess.json").read_text())) == preprocess
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    assert not {node.op_type for node in graph.node} & {"Resize", "Upsample"}  # runtimes differ in them
    shapes = [[size.dim_param or size.dim_value for size in x.type.tensor_type.shape.dim] for x in graph.input]
    assert shapes == [["batch", preprocess.channels, 16, 24]]
    use = "\n".join(line.strip() for line in USE.splitlines()[1:])
    exec(use.replace("DIR", str(tmp_path / "out")).replace("picture.jpg", str(tmp_path / "pictures" / "0.png")), {})
    assert capsys.readouterr().out.strip() in set("abcde")
    package = str(Path(vitkit.__file__).parent).encode()
    assert not any(package in (tmp_path / "out" / file.file).read_bytes() for file in files)  # no paths of this machine
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    for batch in (1, 2, 7, 33):
        inputs = torch.randn(batch, preprocess.channels, 16, 24)
        with torch.inference_mode():
            expected = model(inputs)
            assert_close(program(inputs), expected, rtol=0, atol=TOLERANCE)
        logits = session.run(["logits"], {"images": inputs.numpy()})[0]
        np.testing.assert_allclose(np.asarray(logits), expected.numpy(), rtol=0, atol=TOLERANCE)


def test_different_outputs_are_an_error_and_leave_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "model", {})
    network = open_model(folder).model
    assert isinstance(network, ViT)
    samples = prepare_images(write_images(tmp_path / "pictures"), Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3), 7)

    def open_shifted(path: Path) -> Any:
        return lambda inputs: network(inputs) + 2e-4

    (tmp_path / "out").mkdir()
    writer = ProgramWriter("model.pt2", (), write_torch, open_shifted)
    with pytest.raises(ValueError, match="within 0.0001, got differences 0.0002 at batch 1"):
        write_program(writer, fix_size(network, (16, 24)), network, samples, tmp_path / "out")
    (tmp_path / "pictures" / "0.png").write_bytes(b"")
    before = set(tmp_path.iterdir())
    arguments = ["export", str(folder), "--out", str(tmp_path / "new"), "--images", str(tmp_path / "pictures")]
    assert main(arguments) == 1
    assert "0.png" in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before


def test_existing_folders_and_other_dtypes_than_float32_are_refused(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", {})
    with pytest.raises(ValueError, match="out must be a new or empty folder"):
        export(folder, folder)
    weights.save_weights(folder, open_model(folder).model.bfloat16().state_dict())
    with pytest.raises(ValueError, match=r"model must hold float32, got torch.bfloat16"):
        export(folder, tmp_path / "out")


def test_few_images_become_different_inputs(tmp_path: Path) -> None:
    preprocess = Preprocess((16, 24), (0.5,), (0.25,))
    samples = prepare_images(write_images(tmp_path / "pictures", 2), preprocess, 7)
    assert samples.shape == (7, 1, 16, 24)
    assert len({sample.numpy().tobytes() for sample in samples}) == 7


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the trained weights in ../shared/weights")
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS.keys())
def test_trained_vit_s14_keeps_its_outputs(writer: ProgramWriter, tmp_path: Path) -> None:
    encoder = Encoder(384, 12, 6, residual=partial(PreNorm, scale=1.0))
    model = ViT(encoder, (518, 518), (14, 14), table=partial(Learned, resample=bicubic)).eval()
    state: dict[str, Tensor] = to_vitkit(load_file(SHARED / "vits14_real.safetensors"), (37, 37))
    weights.load(model, state, missing=("head.*",))
    with torch.no_grad():
        model.head.weight.normal_(std=384**-0.5)  # the file has no head, and zeros would hide the features
    preprocess = Preprocess((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    samples = prepare_images((), preprocess, 7)
    file = write_program(writer, fix_size(model, (224, 224)), model, samples, tmp_path)
    print(file, f"of outputs up to {model(samples).abs().max():.1f}")
    assert max(file.differences.values()) < TOLERANCE
