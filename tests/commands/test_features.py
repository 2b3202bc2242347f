import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from safetensors import safe_open
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.cli import main
from vitkit.convert.open import open_image_model, open_model
from vitkit.data.batches import Reading
from vitkit.data.preprocess import Preprocess, read_image
from vitkit.data.sources.source import Files, Source
from vitkit.inference import feature_files
from vitkit.inference.image_features import compute_tokens, features, resolve_layers, stream_features
from vitkit.models import CLIP, ViT
from vitkit.models.parts import get_image_tower
from vitkit.nn import First

SIZE = (8, 12)  # a grid of 2 x 3
PREPROCESS = Preprocess(SIZE, (0.5,) * 3, (0.25,) * 3)
CLASSES = ("dark", "middling", "bright")
FORMATS = ("parquet", "npz", "safetensors")
CPU = Reading(batch=2, device="cpu")
CONFIG = {
    "class_path": "vitkit.models.ViT",
    "init_args": {
        "encoder": {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 3, "heads": 2}},
        "image_size": list(SIZE),
        "patch_size": [4, 4],
        "outputs": 3,
        "prefix": 2,
    },
}

DECODER = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 8, "depth": 1, "heads": 2}}
SHARED: dict[str, object] = {name: value for name, value in CONFIG["init_args"].items() if name != "outputs"}
HEADLESS = {
    "MAE": {"class_path": "vitkit.models.MAE", "init_args": {**SHARED, "decoder": DECODER}},
    "none": {"class_path": "vitkit.models.ViT", "init_args": {**SHARED, "outputs": 0, "pool": "vitkit.nn.Mean"}},
    "axes": {"class_path": "vitkit.models.ViT", "init_args": {**SHARED, "outputs": 7}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    network = model_config.build_model(CONFIG)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    save(tmp_path / "model", Bundle(network, CONFIG, PREPROCESS, CLASSES))
    return tmp_path / "model"


@pytest.fixture
def headless(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Save an MAE, a ViT without a head, or a ViT whose outputs are embedding axes: none has classes."""
    network = model_config.build_model(config := HEADLESS[request.param])
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save(tmp_path / "headless", Bundle(network, config, PREPROCESS))
    return tmp_path / "headless"


@pytest.fixture
def source(tmp_path: Path) -> Files:
    """Return five pictures, the third of which cannot be read."""
    names = ("dark/a.png", "dark/b.png", "bright/c.png", "bright/d.png", "bright/é.png")
    paths = [tmp_path / "pictures" / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(torch.randint(256, (10, 14, 3), dtype=torch.uint8).numpy()).save(path)
    paths[2].write_bytes(b"")
    return Files([str(path) for path in paths], ("bright", "dark"), [1, 1, 0, 0, 0])


def expected_images(source: Source) -> torch.Tensor:
    return torch.stack([PREPROCESS(read_image(source.get_name(index))) for index in (0, 1, 3, 4)])


def test_pooled_features_are_the_inputs_of_the_head(folder: Path, source: Files) -> None:
    model = open_image_model(folder).model
    result = features(folder, source, reading=CPU)
    with torch.inference_mode():
        images = expected_images(source)
        assert_close(torch.from_numpy(result.features["features"]), model.pool(model.features(images)))
        assert_close(model.head(torch.from_numpy(result.features["features"])), model(images))
    assert result.names == tuple(source.files[index] for index in (0, 1, 3, 4))
    assert (result.indices.tolist(), result.labels.tolist()) == ([0, 1, 3, 4], [1, 1, 0, 0])
    assert result.classes == ("bright", "dark")
    assert len(result.skipped) == 1 and source.files[2] in result.skipped[0]


def test_dense_features_are_in_the_grid_of_the_patches(folder: Path, source: Files) -> None:
    model = open_image_model(folder).model
    result = features(folder, source, dense=True, reading=CPU).features["features"]
    assert result.shape == (4, 16, 2, 3)
    with torch.inference_mode():
        tokens = model.features(expected_images(source)).numpy()
    for row in range(2):
        for column in range(3):
            np.testing.assert_allclose(result[:, :, row, column], tokens[:, 2 + row * 3 + column], rtol=1e-5, atol=1e-6)


def test_a_layer_is_the_output_of_its_block_before_the_final_norm(folder: Path, source: Files) -> None:
    model = open_image_model(folder).model
    images = expected_images(source)
    with torch.inference_mode():
        tokens = compute_tokens(model, images, [0, 2])
        assert list(tokens) == ["features_0", "features_2"]
        assert_close(model.encoder.norm(tokens["features_2"]), model.features(images))
        x, _ = model.embed(images)
        assert_close(tokens["features_0"], model.encoder.blocks[0](x))
    assert not model.encoder.blocks[0]._forward_hooks
    result = features(folder, source, layers=[-1, 0], reading=CPU).features
    assert_close(torch.from_numpy(result["features_2"]), model.pool(tokens["features_2"]))


def test_layers_count_from_either_end() -> None:
    assert resolve_layers([3, -1, 0, 11], 12) == [0, 3, 11]
    with pytest.raises(ValueError, match="layers must be from -12 to 11, got 12, -13"):
        resolve_layers([12, 3, -13], 12)


def write_features(folder: Path, source: Files, out: Path, *options: object) -> int:
    root = Path(source.files[0]).parent.parent
    return main(["features", *map(str, [folder, root, "--out", out, "--batch", 2, "--device", "cpu", *options])])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dense", [False, True])
def test_every_format_has_the_same_content(
    folder: Path, source: Files, tmp_path: Path, dense: bool, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--dtype", dtype, "--layers", "0", "-1", *(["--dense"] if dense else [])]
    for suffix in FORMATS:
        assert write_features(folder, source, tmp_path / f"out.{suffix}", *options) == 1  # one picture is broken
    out, error = capsys.readouterr()
    assert "features_0: 4 x 16" in out
    assert error.count("c.png") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"model", "pictures", *(f"out.{suffix}" for suffix in FORMATS)}
    files = [source.files[index] for index in (3, 4, 0, 1)]  # class folders come in sorted order
    again = Files(files, ("bright", "dark"), [0, 0, 1, 1])
    expected = features(folder, again, layers=[0, -1], dense=dense, dtype=dtype, reading=CPU)

    with np.load(tmp_path / "out.npz") as file:  # allow_pickle=False
        assert file["name"].tolist() == list(expected.names)
        assert file["classes"].tolist() == ["bright", "dark"]
        assert (file["index"].tolist(), file["label"].tolist()) == ([1, 2, 3, 4], [0, 0, 1, 1])
        for name, array in expected.features.items():
            assert file[name].dtype == dtype
            np.testing.assert_array_equal(file[name], array)
    with safe_open(tmp_path / "out.safetensors", "np") as file:
        assert json.loads(file.metadata()["name"]) == list(expected.names)
        assert json.loads(file.metadata()["classes"]) == ["bright", "dark"]
        assert file.get_tensor("label").tolist() == [0, 0, 1, 1]
        for name, array in expected.features.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("name").to_pylist() == list(expected.names)
    assert table.column("label").to_pylist() == [0, 0, 1, 1]
    shapes = json.loads(table.schema.metadata[b"shapes"])
    for name, array in expected.features.items():
        rows = np.array(table.column(name).to_pylist(), dtype).reshape(-1, *shapes[name])
        np.testing.assert_array_equal(rows, array)


def test_name_that_is_not_utf8_is_escaped_in_parquet(tmp_path: Path) -> None:
    rows = feature_files.FeatureRows({"features": np.ones((1, 2))}, ("caf\udce9.png",), np.array([0]), None, ())
    feature_files.write_features(tmp_path / "out.parquet", [rows], ())
    assert parquet.read_table(tmp_path / "out.parquet").column("name").to_pylist() == ["caf\\udce9.png"]


def test_sets_of_labels_are_written(folder: Path, source: Files, tmp_path: Path) -> None:
    multilabel = Files(source.files, ("bright", "dark"), [(0, 1), (), (0,), (1,), (0,)])
    for suffix in FORMATS:
        rows = stream_features(open_image_model(folder), multilabel, reading=CPU)
        feature_files.write_features(tmp_path / f"out.{suffix}", rows, ("bright", "dark"))
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("label").to_pylist() == [[0, 1], [], [1], [0]]
    with np.load(tmp_path / "out.npz") as file:
        assert file["label"].tolist() == [[True, True], [False, False], [False, True], [True, False]]


def test_folder_of_unlabelled_pictures(
    folder: Path, source: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = Path(source.files[0]).parent
    arguments = [str(folder), str(flat), "--out", str(tmp_path / "out.npz"), "--device", "cpu"]
    assert main(["features", *arguments]) == 0
    assert capsys.readouterr().err == f"note: {flat} has no class folders: its pictures have no labels\n"
    with np.load(tmp_path / "out.npz") as file:
        assert sorted(file) == ["classes", "features", "index", "name"]
        assert file["name"].tolist() == [f"{flat}/a.png", f"{flat}/b.png"]


def test_invalid_output_is_refused_before_reading(
    folder: Path, source: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.npz").write_text("mine")
    for out, message in (
        ("mine.npz", "add --overwrite"),
        ("out.csv", "out must end in"),
        ("no/out.npz", "exists"),
    ):
        assert write_features(folder, source, tmp_path / out) == 1
        assert message in capsys.readouterr().err
    assert (tmp_path / "mine.npz").read_text() == "mine"


def test_failed_run_leaves_no_file(folder: Path, source: Files, tmp_path: Path) -> None:
    for path in source.files:
        Path(path).write_bytes(b"")
    before = set(tmp_path.iterdir())
    for suffix in FORMATS:
        assert write_features(folder, source, tmp_path / f"out.{suffix}") == 1
    assert set(tmp_path.iterdir()) == before


def test_features_beyond_float16_are_refused(folder: Path, source: Files) -> None:
    model = open_model(folder).model
    with torch.no_grad():
        model.get_parameter("encoder.norm.weight").fill_(1e6)
    weights.save_weights(folder, model.state_dict())
    assert isinstance(model, ViT)
    with pytest.raises(ValueError, match="features must be finite in dtype=float16"):
        features(folder, source, dtype="float16", reading=CPU)


@pytest.mark.parametrize("headless", HEADLESS, indirect=True)
def test_features_of_models_without_classes(headless: Path, source: Files) -> None:
    bundle = open_image_model(headless)
    assert bundle.class_names == ()
    model = get_image_tower(bundle.model)
    with torch.inference_mode():
        tokens = model.features(expected_images(source))
        block_tokens = compute_tokens(model, expected_images(source), [1])["features_1"]
    first = isinstance(model, ViT) and isinstance(model.pool, First)
    expected = tokens[:, 0] if first else tokens[:, 2:].mean(1)
    result = features(headless, source, reading=CPU).features["features"]
    assert_close(torch.from_numpy(result), expected)
    result = features(headless, source, dense=True, reading=CPU).features["features"]
    assert_close(torch.from_numpy(result).flatten(2).mT, tokens[:, 2:])
    result = features(headless, source, layers=[1], dense=True, reading=CPU).features["features_1"]
    assert_close(torch.from_numpy(result).flatten(2).mT, block_tokens[:, 2:])


def test_model_of_another_class_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "encoder", Bundle(model_config.build_model(DECODER), DECODER, None))
    with pytest.raises(ValueError, match="model must be a ViT or an MAE, got Encoder in"):
        open_image_model(tmp_path / "encoder")


@pytest.mark.parametrize("headless", ["none"], indirect=True)
def test_classes_without_a_head_are_refused(headless: Path) -> None:
    (headless / "classes.json").write_text('["a", "b"]')
    with pytest.raises(ValueError, match="model must give a number per class, got 0 for 2 classes"):
        open_image_model(headless)


def test_features_of_a_clip_are_its_embeddings(clip_folder: Path, source: Files) -> None:
    bundle = open_model(clip_folder)
    model, preprocess = bundle.model, bundle.preprocess
    assert isinstance(model, CLIP)
    readable = [index for index in range(5) if index != 2]
    with torch.inference_mode():
        images = torch.stack([preprocess(source.read_image(index)) for index in readable])
        embeddings, tokens = model.encode_image(images), model.image.features(images)
        first = compute_tokens(model.image, images, [0])["features_0"]
    result = features(clip_folder, source, reading=CPU)
    assert_close(torch.from_numpy(result.features["features"]), embeddings)
    result = features(clip_folder, source, dense=True, reading=CPU)
    assert_close(torch.from_numpy(result.features["features"]).flatten(2).mT, tokens[:, 1:])
    result = features(clip_folder, source, layers=[0], reading=CPU)
    assert_close(torch.from_numpy(result.features["features_0"]), first[:, 0])
