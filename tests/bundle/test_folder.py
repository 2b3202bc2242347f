import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitkit.nn
from vitkit.bundle import first_version, model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import FILES, is_same_description, list_files, read_classes, save, save_config
from vitkit.bundle.image_bundle import select_tower
from vitkit.convert.importer import build_bundle
from vitkit.convert.open import open_model
from vitkit.convert.overrides import Conversion
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models.parts import get_text_tower
from vitkit.support import files

PREPROCESS = Preprocess((8, 12), (0.5,), (0.25,))
CLASSES = ("cat", "dög", "owl")


def config(encoder: dict[str, Any] | None = None, **model: Any) -> dict[str, Any]:
    inner = {"dim": 16, "depth": 2, "heads": 2} | (encoder or {})
    outer = {"image_size": [8, 12], "patch_size": [4, 4], "outputs": 3, "channels": 1} | model
    encoder_config = {"class_path": "vitkit.nn.Encoder", "init_args": inner}
    return {"class_path": "vitkit.models.ViT", "init_args": {"encoder": encoder_config} | outer}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save(folder, Bundle(model_config.build_model(config()), config(), PREPROCESS, CLASSES))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def capture_error(function: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        function()
    assert "\n" not in str(error.value)
    return str(error.value)


def capture_open_error(folder: Path, name: str, content: str | bytes) -> str:
    """Return the error of opening the folder after this content replaces a file, without the file's path."""
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    message = capture_error(lambda: open_model(folder))
    assert message.startswith(str(folder / name))
    return message.removeprefix(f"{folder / name}: ")


def test_load_copies_every_tensor() -> None:
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    weights.load(target, source.state_dict())
    torch.testing.assert_close(target.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_load_lists_every_difference_at_once_and_changes_nothing() -> None:
    model = nn.ModuleDict({"body": nn.Linear(3, 2), "head": nn.Linear(2, 2)})
    before = deepcopy(model.state_dict())
    state = {"body.weight": torch.ones(2, 3), "head.weight": torch.ones(5, 2), "head.bias": torch.ones(2)}
    with pytest.raises(ValueError) as error:
        weights.load(model, state | {"mask_token": torch.ones(1)})
    assert str(error.value).splitlines() == [
        "state must fit the model, got",
        "  - body.bias: model (2,), not in the file",
        "  ! head.weight: model (2, 2), file (5, 2)",
        "  + mask_token: file (1,), not in the model",
    ]
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_load_allows_only_listed_differences() -> None:
    model = nn.ModuleDict({"body": nn.Linear(3, 2), "head": nn.Linear(2, 4)})
    state = nn.ModuleDict({"body": nn.Linear(3, 2), "head": nn.Linear(2, 10), "decoder": nn.Linear(1, 1)}).state_dict()
    head = model["head"].state_dict()["weight"].clone()
    weights.load(model, state, missing=("head.*",), unused=("head.*", "decoder.*"))
    torch.testing.assert_close(model.state_dict()["body.weight"], state["body.weight"], rtol=0, atol=0)
    torch.testing.assert_close(model.state_dict()["head.weight"], head, rtol=0, atol=0)
    for excuses in ({"missing": ("head.*",)}, {"unused": ("head.*", "decoder.*")}, {"unused": ("*",)}):
        with pytest.raises(ValueError, match="head.weight"):
            weights.load(model, state, **excuses)


@pytest.mark.parametrize(
    "given",
    [
        config(),
        config({"norm": "torch.nn.RMSNorm", "mlp": {"class_path": "vitkit.nn.SwiGLU", "init_args": {"ratio": 2.0}}}),
        config(
            {"position": {"class_path": "vitkit.nn.Rotary", "init_args": {"axes": 2}}, "residual": "vitkit.PostNorm"}
        ),
        config({"position": {"class_path": "vitkit.nn.RelativeBias", "init_args": {"axes": 2, "prefix": 1}}}),
        config(table="vitkit.nn.Sinusoidal", pool={"class_path": "vitkit.nn.Attend", "init_args": {"heads": 2}}),
        config(init="vitkit.nn.init.mae", prefix=0, pool="vitkit.nn.Mean"),
        config(table={"class_path": "vitkit.nn.Learned", "init_args": {"resample": "vitkit.nn.bicubic"}}),
    ],
)
def test_open_model_restores_the_saved_bundle(tmp_path: Path, given: dict[str, Any]) -> None:
    model = model_config.build_model(given).bfloat16().eval()
    save(tmp_path, Bundle(model, given, PREPROCESS, CLASSES))
    opened = open_model(tmp_path)
    images = torch.randn(2, 1, 8, 12, dtype=torch.bfloat16)
    torch.testing.assert_close(opened.model(images), model(images), rtol=0, atol=0)
    assert (opened.preprocess, opened.class_names, opened.tokenizer) == (PREPROCESS, CLASSES, None)
    assert not any(module.training for module in opened.model.modules())
    assert all(parameter.requires_grad and parameter.dtype == torch.bfloat16 for parameter in opened.model.parameters())
    assert not any(tensor.is_meta for tensor in (*opened.model.parameters(), *opened.model.buffers()))


@pytest.mark.parametrize("recipe", ["vit", "mae", "clip"])
def test_opening_a_folder_skips_random_initialisation(recipe: str, tmp_path: Path) -> None:
    """For tensors on the meta device torch would import its compiler, which takes longer than everything else."""
    given = config(init=f"vitkit.nn.init.{recipe}")
    save(tmp_path, Bundle(model_config.build_model(given), given, PREPROCESS, CLASSES))
    code = f"import sys; from vitkit.convert.open import open_model; open_model({str(tmp_path)!r}); "
    code += "print({*sys.modules} & {'torch._dynamo', 'sympy'})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


class StoredTable(nn.Module):
    """A table of positions whose values `keep` stores in the module."""

    def __init__(self, size: tuple[int, int], keep: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        keep(self, torch.ones(size))

    def forward(self, positions: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.get_buffer("sines")


def keep_buffer(module: nn.Module, table: Tensor) -> None:
    module.register_buffer("sines", table, persistent=False)


def keep_attribute(module: nn.Module, table: Tensor) -> None:
    vars(module)["sines"] = table


def keep_private(module: nn.Module, table: Tensor) -> None:
    vars(module)["_sines"] = table


def keep_mapping(module: nn.Module, table: Tensor) -> None:
    vars(module)["tables"] = {"sines": [table]}


def keep_persistent(module: nn.Module, table: Tensor) -> None:
    module.register_buffer("sines", table)


@pytest.fixture
def save_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], Path]:
    """A function that saves a model with such a table, which a config may name."""

    def save_model(keep: Callable[[nn.Module, Tensor], object]) -> Path:
        def table(dim: int, grid: tuple[int, int]) -> nn.Module:
            return StoredTable((math.prod(grid), dim), keep)

        monkeypatch.setattr(vitkit.nn, "stored_table", table, raising=False)
        names = {**model_config.get_config_names(), "vitkit.nn.stored_table": table}
        monkeypatch.setattr(model_config, "get_config_names", lambda: names)
        model_config._parse_text.cache_clear()  # it may hold another function of this name
        given = config(table="vitkit.nn.stored_table")
        save(tmp_path, Bundle(model_config.build_model(given), given, PREPROCESS, CLASSES))
        return tmp_path

    return save_model


@pytest.mark.parametrize(
    ("keep", "name"),
    [(keep_buffer, "sines"), (keep_attribute, "sines"), (keep_private, "_sines"), (keep_mapping, "tables.sines.0")],
)
def test_tensors_outside_the_file_are_rejected(
    save_table: Callable[[Callable], Path], keep: Callable, name: str
) -> None:
    """They would stay on the meta device, and so would every output."""
    folder = save_table(keep)
    expected = f"got embed.table.{name} without numbers; compute such tables in forward"
    assert expected in (message := capture_error(lambda: open_model(folder)))
    assert message.startswith(f"{folder / 'config.yaml'}: model must hold no tensors but those in its file")
    given = config(table="vitkit.nn.stored_table")
    imported = Conversion(given, load_file(folder / "model.safetensors"), PREPROCESS, CLASSES)
    assert expected in capture_error(lambda: build_bundle(imported))


def test_persistent_buffer_is_loaded(save_table: Callable[[Callable], Path]) -> None:
    opened = open_model(save_table(keep_persistent))
    assert opened.model(torch.randn(2, 1, 8, 12)).isfinite().all()


def test_argument_with_default_value_describes_same_model(folder: Path) -> None:
    """A resumed run describes its model again, with classes that may have gained arguments."""
    save_config(folder, config(prefix=1), PREPROCESS, CLASSES)
    with pytest.raises(ValueError, match="another config.yaml"):
        save_config(folder, config(prefix=2), PREPROCESS, CLASSES)


def test_save_config_rejects_another_model(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    save_config(folder, config(), PREPROCESS, CLASSES)
    for other in ((config({"depth": 3}), PREPROCESS, CLASSES), (config(), PREPROCESS, CLASSES[:2])):
        assert "must be new" in capture_error(lambda other=other: save_config(folder, *other))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {*before} == {*list_files(("images",))}


def test_weights_are_replaced_atomically(folder: Path) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt), files.replace_file(folder / "model.safetensors") as path:
        path.write_bytes(before[:100])
        raise KeyboardInterrupt
    assert (folder / "model.safetensors").read_bytes() == before
    model = model_config.build_model(config())
    weights.save_weights(folder, model.state_dict())
    torch.testing.assert_close(load_file(folder / "model.safetensors"), dict(model.state_dict()), rtol=0, atol=0)


def test_tied_parameters_are_rejected(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert "0.weight, 1.weight" in capture_error(lambda: weights.save_weights(tmp_path, model.state_dict()))


def test_mismatched_config_is_rejected_before_writing(folder: Path, tmp_path: Path) -> None:
    bundle = open_model(folder)
    for config, rule in (({}, "got none for ViT"), (bundle.config, "tensors that differ, the first: ")):
        model = bundle.model if not config else select_tower(bundle).model
        with pytest.raises(ValueError, match=f"bundle.config must.*{rule}"):
            save(tmp_path / "new", bundle._replace(model=model, config=config))
    assert not (tmp_path / "new").exists()


def test_open_model_error_tells_what_is_missing(folder: Path, tmp_path: Path) -> None:
    assert "no such folder" in capture_error(lambda: open_model(tmp_path / "nowhere"))
    assert f"try {folder}" in capture_error(lambda: open_model(tmp_path))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text("{}")
    assert "of another library: take hf:" in capture_error(lambda: open_model(tmp_path / "gpt2"))
    (folder / "classes.json").unlink()
    assert "it lacks classes.json" in capture_error(lambda: open_model(folder))
    assert "torch: is not" in capture_error(lambda: open_model("torch:vit_tiny_patch16_224"))


@pytest.mark.parametrize(
    "foreign",
    [
        "os.system",
        "torch.nn.parallel.distributed.os.system",
        "torch.nn.Module",
        "vitkit.nn.attention.F.gelu",
        "vitkit.convert.open.open_model",
        "trap.Module",
        "{class_path: trap.Module}",
        "!!python/object/apply:trap.spring",
    ],
)
@pytest.mark.parametrize("place", ["model", "slot", "value", "list", "key"])
def test_foreign_names_are_rejected_without_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch, foreign: str, place: str
) -> None:
    sprung = folder.parent / "sprung"
    (folder.parent / "trap.py").write_text(f"open({str(sprung)!r}, 'w')\n")
    monkeypatch.syspath_prepend(folder.parent)
    given = {
        "model": {"class_path": foreign, "init_args": {}},
        "slot": config({"mlp": {"class_path": foreign}}),
        "value": config(outputs=foreign),
        "list": config(image_size=[8, foreign]),
        "key": config({foreign: 1}),
    }[place]
    assert "must" in capture_open_error(folder, "config.yaml", yaml.safe_dump(given))
    assert not sprung.exists()
    assert "trap" not in sys.modules


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "config.yaml",
            "class_path: !!python/object/apply:os.system [touch sprung]",
            "could not determine a constructor",
        ),
        ("config.yaml", "class_path: [vitkit.models.ViT]", "one class_path"),
        ("config.yaml", "class_path: {a: 1", "expected"),
        ("config.yaml", "a: &a [1]\nb: *a", "alias"),
        ("config.yaml", "- 1", "mapping"),
        ("config.yaml", "[" * 100_000, "recursion depth"),
        ("config.yaml", b"\xff\xfe\x00", "codec"),
        ("preprocess.json", "{", "Expecting"),
        ("preprocess.json", "{}", "missing"),
        ("preprocess.json", json.dumps(PREPROCESS.to_dict() | {"size": [10**6, 10**6]}), "at most 178,956,970 pixels"),
        ("classes.json", "[1, 2]", "list of names"),
        ("model.safetensors", b"", "header"),
        ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00" + b"x" * 40, "header"),
    ],
)
def test_malformed_file_is_in_the_error(folder: Path, name: str, content: str | bytes, message: str) -> None:
    assert message in capture_open_error(folder, name, content)


TEXT = {"vocabulary": 30, "context": 6, "outputs": 3}


def build_inputs_bundle(name: str) -> Bundle:
    """Return a model with exactly what its inputs need."""
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2, "causal": True}}
    text = {"class_path": "vitkit.models.TextTower", "init_args": {**TEXT, "encoder": encoder}}
    decoder = {"class_path": "vitkit.TextDecoder", "init_args": {"encoder": encoder, "vocabulary": 257, "context": 7}}
    both = {"class_path": "vitkit.models.CLIP", "init_args": {"image": config(), "text": text}}
    bundles = {
        "ViT": Bundle(model_config.build_model(config()), config(), PREPROCESS),
        "TextTower": Bundle(model_config.build_model(text), text, None, tokenizer=Tokenizer(6)),
        "TextDecoder": Bundle(
            model_config.build_model(decoder), decoder, None, tokenizer=Tokenizer(7, vocabulary="bytes")
        ),
        "CLIP": Bundle(model_config.build_model(both), both, PREPROCESS, tokenizer=Tokenizer(6)),
    }
    return bundles[name]


FURTHER = {
    "ViT": {"preprocess.json"},
    "TextTower": {"text.json"},
    "TextDecoder": {"text.json"},
    "CLIP": {"preprocess.json", "text.json"},
}


@pytest.mark.parametrize("name", FURTHER)
def test_files_of_a_folder_follow_from_inputs(name: str, tmp_path: Path) -> None:
    bundle = build_inputs_bundle(name)
    save(tmp_path / "model", bundle)
    assert {path.name for path in (tmp_path / "model").iterdir()} - {*FILES} == FURTHER[name]
    opened = open_model(tmp_path / "model")
    assert (opened.preprocess is None, opened.tokenizer is None) == (name.startswith("Text"), name == "ViT")
    save(tmp_path / "again", opened)
    assert {path.name for path in (tmp_path / "again").iterdir()} == {*FILES} | FURTHER[name]
    torch.testing.assert_close(opened.model.state_dict(), bundle.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "change", "problems"),
    [
        ("ViT", {"preprocess": None}, "it lacks preprocess.json, as ViT reads images"),
        ("ViT", {"tokenizer": Tokenizer(6)}, "it has text.json, but ViT reads no texts"),
        ("TextTower", {"preprocess": PREPROCESS}, "it has preprocess.json, but TextTower reads no images"),
        ("TextTower", {"tokenizer": None}, "it lacks text.json, as TextTower reads texts"),
        (
            "CLIP",
            {"preprocess": None, "tokenizer": None},
            "it lacks preprocess.json, as CLIP reads images; it lacks text.json, as CLIP reads texts",
        ),
    ],
)
def test_missing_and_surplus_files_are_listed(name: str, change: dict[str, Any], problems: str, tmp_path: Path) -> None:
    """The error is raised when a folder is written, and when it is opened."""
    bundle = build_inputs_bundle(name)
    changed = bundle._replace(**change)
    message = capture_error(lambda: save(tmp_path / "new", changed))
    assert message == f"folder must hold what its model reads, got {tmp_path / 'new'}; {problems}"
    assert not (tmp_path / "new").exists()
    save(folder := tmp_path / "model", bundle)
    for field, file in (("preprocess", "preprocess.json"), ("tokenizer", "text.json")):
        if field in change:
            (folder / file).write_text("{}")
            if change[field] is None:
                (folder / file).unlink()
    assert capture_error(lambda: open_model(folder)) == f"source must be a model folder, got {folder}; {problems}"


@pytest.mark.parametrize("name", ["ViT", "CLIP"])
def test_other_number_of_channels_is_rejected(name: str, tmp_path: Path) -> None:
    save(tmp_path, build_inputs_bundle(name)._replace(preprocess=Preprocess((8, 12), (0.5,) * 3, (0.5,) * 3)))
    assert (
        capture_error(lambda: open_model(tmp_path)) == f"{tmp_path / 'preprocess.json'}: must be for 1 channels, got 3"
    )


@pytest.mark.parametrize("name", ["TextTower", "CLIP"])
def test_tokenizer_with_longer_context_is_rejected(name: str, tmp_path: Path) -> None:
    save(tmp_path, build_inputs_bundle(name)._replace(tokenizer=Tokenizer(78)))
    context = get_text_tower(build_inputs_bundle(name).model).embed.context
    expected = f"{tmp_path / 'text.json'}: context must be at most the model's {context}, got 78"
    assert capture_error(lambda: open_model(tmp_path)) == expected


def test_context_that_no_parameter_limits_is_rejected() -> None:
    with pytest.raises(ValueError, match="context must be at most 1,048,576 ids, got context=1,000,000,000"):
        Tokenizer(10**9)


def test_class_names_of_a_model_folder_are_one_line_without_controls(folder: Path) -> None:
    (folder / "classes.json").write_text(json.dumps(["\x1b[31mred\n", "a\r\tb", "dög 🐕"]))
    assert open_model(folder).class_names == ("\\u001b[31mred\\u000a", "a\\u000d\\u0009b", "dög 🐕")


def test_two_classes_of_one_name_in_a_model_folder_are_told_apart(folder: Path) -> None:
    (folder / "classes.json").write_text('["crane", "owl", "crane"]')
    assert open_model(folder).class_names == ("crane", "owl", "crane (2)")


@pytest.mark.parametrize("several", [False, True])
def test_multilabel_is_saved_with_classes(several: bool, tmp_path: Path) -> None:
    save(tmp_path, Bundle(model_config.build_model(config()), config(), PREPROCESS, CLASSES, multilabel=several))
    assert read_classes(tmp_path) == (CLASSES, several)
    assert open_model(tmp_path).class_names == CLASSES
    content = json.loads((tmp_path / "classes.json").read_text("utf-8"))
    assert content == ({"several": [*CLASSES]} if several else [*CLASSES])


def test_truncated_weights_are_rejected(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    for length in (4, 100, len(whole) - 1):
        capture_open_error(folder, "model.safetensors", whole[:length])


def test_mismatched_shape_error_names_first_tensor(folder: Path) -> None:
    given = yaml.safe_dump(config(outputs=7))
    (folder / "config.yaml").write_text(given)
    message = capture_error(lambda: open_model(folder))
    assert message.endswith("2 tensors do not fit config.yaml, the first: ! head.bias: model (7,), file (3,)")


def test_integer_weights_are_rejected(folder: Path) -> None:
    state = {name: tensor.long() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    assert "floating point" in capture_error(lambda: open_model(folder))


@pytest.mark.parametrize("huge", [{"dim": 10_000_000}, {"depth": 100_000_000}, {"dim": 1, "heads": 1, "depth": 10**9}])
def test_oversized_config_is_rejected_in_little_memory(folder: Path, huge: dict[str, int]) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config(huge)))
    code = (
        "import sys\n"
        "from vitkit.bench.attention_capture import read_peak_memory, reset_peak_memory\n"
        "from vitkit.convert.open import open_model\n"
        "reset_peak_memory(); start = read_peak_memory()\n"
        "try: open_model(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print(read_peak_memory() - start)"
    )
    process = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    message, growth = process.stdout.splitlines()
    assert "model must fit its weights" in message
    assert int(growth) < 200e6


def test_files_of_a_folder_are_plain_json_and_yaml(folder: Path) -> None:
    assert json.loads((folder / "classes.json").read_text("utf-8")) == list(CLASSES)
    assert yaml.safe_load((folder / "config.yaml").read_text("utf-8")) == config()


def test_files_of_inputs_may_lack_later_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All arguments of Preprocess exist since the first version; this test pretends that crop was added later."""
    monkeypatch.setattr(first_version, "PREPROCESS", ("size", "mean", "std", "interpolation"))
    preprocess = Preprocess((8, 8), (0.5,), (0.25,)).to_dict()
    tokenizer = Tokenizer(6).to_dict()
    for name, fields, first, later, changed in (
        ("preprocess.json", preprocess, {"size": [8, 9]}, {"crop": 1.0}, {"crop": 0.5}),
        ("text.json", tokenizer, {"context": 7}, {"cased": False, "special": []}, {"cased": True}),
    ):
        before = {key: value for key, value in fields.items() if key not in later}
        (tmp_path / name).write_text(json.dumps(before, indent=1))
        for more, same in (({}, True), (later, True), (changed, False), (first, False), ({"unknown": 1}, False)):
            assert is_same_description(tmp_path / name, json.dumps({**before, **more}).encode()) is same, (name, more)
        (tmp_path / name).write_text("[1]")
        assert not is_same_description(tmp_path / name, json.dumps(fields).encode())
