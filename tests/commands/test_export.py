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
from vitkit.commands.export import CLASSIFIER, CLIP, MAE
from vitkit.convert.open import open_model
from vitkit.convert.programs import (
    TOLERANCE,
    WRITERS,
    ProgramWriter,
    export,
    make_graphs,
    prepare_images,
    write_program,
    write_torch,
)
from vitkit.convert.timm.tensors import to_vitkit
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import ViT
from vitkit.models.parts import get_image_tower, require_pair_model
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
    run_lines(CLASSIFIER, tmp_path, {})
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


def test_opset_is_the_chosen_one_and_refused_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = save_model(tmp_path / "model", {}), tmp_path / "out"
    arguments = ["export", str(folder), "--out", str(out)]
    for options, got in (
        (["--opset", "17"], "opset must be from 18 to 23, for the format onnx, got opset=17 for onnx"),
        (["--opset", "21", "--format", "torch"], "for the format onnx, got opset=21 for torch"),
        (["--opset", "21", "--to", "timm"], "opset must be left out with --to, got opset=21"),
    ):
        assert main([*arguments, *options]) == 1
        assert got in capsys.readouterr().err
    assert main([*arguments, "--opset", "21", "--images", *write_images(tmp_path / "pictures")]) == 0
    (imported,) = onnx.load(out / "model.onnx").opset_import
    assert (imported.domain, imported.version) == ("", 21)


def run_lines(use: str, folder: Path, names: dict[str, Any]) -> None:
    """Run lines of the help."""
    lines = "\n".join(line.strip() for line in use.splitlines()[1:])
    exec(lines.replace("DIR", str(folder / "out")).replace("picture.jpg", str(folder / "pictures" / "0.png")), names)


def save_larger_model(folder: Path, kind: str, sizes: dict[str, Any], tokenizer: Tokenizer | None = None) -> Path:
    """Write the folder of a model of images of 16 x 24 pixels, with random weights but for scalars."""
    config = {"class_path": f"vitkit.models.{kind}", "init_args": sizes}
    network = model_config.build_model(config)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim:
                parameter.normal_(std=0.2)
    save(folder, Bundle(network, config, Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3), tokenizer=tokenizer))
    return folder


def make_encoder(**arguments: Any) -> dict[str, Any]:
    return {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 2, **arguments}}


IMAGES = {"image_size": [16, 24], "patch_size": [8, 8], "encoder": make_encoder()}
END = {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": 256}}


@pytest.mark.parametrize("whole", [False, True])
def test_exported_towers_embed_as_the_model_does(
    whole: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"encoder": make_encoder(causal=not whole), "vocabulary": 257, "context": 12, "outputs": 8}
    text["pool"] = "vitkit.nn.Last" if whole else END
    image = {"class_path": "vitkit.models.ViT", "init_args": {**IMAGES, "outputs": 8}}
    towers = {"image": image, "text": {"class_path": "vitkit.models.TextTower", "init_args": text}}
    tokenizer = Tokenizer(12, vocabulary="bytes", whole=whole)
    folder = save_larger_model(tmp_path / "model", "CLIP", {**towers, **({"bias": -3.0} if whole else {})}, tokenizer)
    files = export(folder, tmp_path / "out", ["onnx", "torch"], write_images(tmp_path / "pictures"))
    assert [file.file for file in files] == ["image.onnx", "text.onnx", "image.pt2", "text.pt2"]
    names = {"preprocess.json", "text.json", "logits.json", *(file.file for file in files)}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    model, images = require_pair_model(open_model(folder).model), torch.randn(5, 3, 16, 24)
    ids = tokenizer(["a", "a cat", "a long text"])
    programs = [torch.export.load(tmp_path / "out" / f"{name}.pt2").module() for name in ("image", "text")]
    with torch.inference_mode():
        pair = model(images, ids)
        assert_close((programs[0](images), programs[1](ids)), (pair.image, pair.text), rtol=0, atol=TOLERANCE)
    used: dict[str, Any] = {"images": images, "json": json, "Path": Path, "onnxruntime": onnxruntime}
    run_lines(CLIP, tmp_path, used)
    logits = pair.scale * pair.image @ model.encode_text(tokenizer(["a cat", "a dog"])).mT + pair.bias
    result = used["logits"]["scale"] * used["image"] @ used["text"].T + used["logits"]["bias"]
    np.testing.assert_allclose(result, logits.detach().numpy(), rtol=0, atol=1e-3)
    assert capsys.readouterr().out.startswith("[[")


def test_exported_encoder_sees_all_patches(tmp_path: Path) -> None:
    sizes = {**IMAGES, "decoder": make_encoder(dim=16)}
    folder = save_larger_model(tmp_path / "model", "MAE", sizes)
    assert main(["export", str(folder), "--out", str(tmp_path / "out"), "--images", *write_images(tmp_path / "p")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "preprocess.json"}
    images = torch.randn(5, 3, 16, 24)
    used = {"session": onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx"), "images": images}
    run_lines(MAE, tmp_path, used)
    features = get_image_tower(open_model(folder).model).features(images)
    assert used["features"].shape == (5, 1 + 6, 32)
    np.testing.assert_allclose(used["features"], features.detach().numpy(), rtol=0, atol=TOLERANCE)
    decoder = "decoder" in str(onnx.load(tmp_path / "out" / "model.onnx").graph)
    assert not decoder


def test_different_outputs_are_an_error_and_leave_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_model(tmp_path / "model", {})
    bundle = open_model(folder)
    network = bundle.model
    samples = prepare_images(write_images(tmp_path / "pictures"), Preprocess((16, 24), (0.5,) * 3, (0.25,) * 3), 7)

    def open_shifted(path: Path) -> Any:
        return lambda inputs: network(inputs) + 2e-4

    (tmp_path / "out").mkdir()
    writer = ProgramWriter(".pt2", (), write_torch, open_shifted)
    with pytest.raises(ValueError, match="within 0.0001, got differences 0.0002 at batch 1"):
        write_program(writer, make_graphs(bundle, samples)[0], tmp_path / "out")
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
    file = write_program(writer, make_graphs(Bundle(model, {}, preprocess), samples)[0], tmp_path)
    print(file, f"of outputs up to {model(samples).abs().max():.1f}")
    assert max(file.differences.values()) < TOLERANCE
