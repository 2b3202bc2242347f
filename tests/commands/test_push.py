import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import ModelCard, constants

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import FILES, save
from vitkit.cli import main
from vitkit.convert.hub_upload import prepare_upload, push, upload
from vitkit.convert.model_card import format_class, format_summary, make_card, shorten_source
from vitkit.convert.open import open_model
from vitkit.data.preprocess import Preprocess
from vitkit.models import ViT

REPORT = {
    "accuracy": 0.9917,
    "recall": 0.9912,
    "best": 0.9945,
    "averaged": True,
    "pictures": 360,
    "unreadable": 0,
    "epochs": 40,
    "steps": 920,
    "seconds": 65.2,
    "samples_per_second": 949.1,
    "baselines": {"most frequent class": 0.1, "5-NN on pixels": 0.9861},
}
RUN: dict[str, Any] = {
    "model": {
        "class_path": "vitkit.tasks.classify.Classify",
        "init_args": {
            "lr": 0.003,
            "label_smoothing": 0.1,
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"weight_decay": 0.05, "betas": [0.9, 0.95]}},
            "schedule": {"class_path": "vitkit.optim.WarmupCosine", "init_args": {"warmup": 100}},
        },
    },
    "data": {"init_args": {"train": "/home/somebody/secret/pictures", "val": None, "batch": 64}},
    "trainer": {"max_epochs": 40},
    "ema": {"decay": 0.99},
    "pretrained": None,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run folder with its model."""
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    arguments = {"image_size": [8, 12], "patch_size": [4, 4], "outputs": 2, "encoder": encoder, "channels": 1}
    config: dict[str, Any] = {"class_path": "vitkit.models.ViT", "init_args": arguments}
    run = tmp_path / "runs" / "tiny"
    save(
        run / "model",
        Bundle(model_config.build_model(config), config, Preprocess((8, 12), (0.5,), (0.5,)), ("cat", "dög")),
    )
    (run / "config.yaml").write_text(yaml.safe_dump(RUN, sort_keys=False))
    (run / "report.json").write_text(json.dumps(REPORT))
    return run


def test_card_holds_hyperparameters_and_results_of_the_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    folder = prepare_upload(run / "model", "me/tiny", tmp_path / "card", "apache-2.0")
    assert {path.name for path in folder.iterdir()} == {*FILES, "preprocess.json", "README.md"}
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "apache-2.0"
    metadata = card.data.to_dict()
    assert metadata["library_name"] == "vitkit"
    assert metadata["pipeline_tag"] == "image-classification"
    for line in (
        "| training set | pictures |",
        "| epochs | 40 |",
        "| learning rate | 0.003 |",
        "| optimiser | AdamW(weight_decay=0.05, betas=[0.9, 0.95]) |",
        "| schedule | WarmupCosine(warmup=100) |",
        "| moving average | 0.99 |",
        "| accuracy | 0.9917 |",
        "| 5-NN on pixels | 0.9861 |",
        "Validation set: 360 pictures, 0 unreadable, 40 epochs, 920 steps.",
        "2 classes: cat, dög.",
    ):
        assert line in card.text.splitlines(), line
    assert "somebody" not in card.content  # the card names no local path
    assert "949.1" not in card.content
    bundle, ours = open_model(folder), open_model(run / "model")
    images = torch.randn(2, 1, 8, 12)
    torch.testing.assert_close(bundle.model(images), ours.model(images), rtol=0, atol=0)


def test_card_counts_samples_in_the_unit_of_the_data(run: Path, tmp_path: Path) -> None:
    report = {**{name: value for name, value in REPORT.items() if name != "pictures"}, "unit": "texts", "texts": 1234}
    (run / "report.json").write_text(json.dumps(report))
    content = make_card(open_model(run / "model"), run / "model", "me/model").content
    assert "Validation set: 1,234 texts, 0 unreadable, 40 epochs, 920 steps." in content
    assert "| batch size | 64 |" in content


def test_card_says_how_many_samples_were_trained_on(run: Path) -> None:
    sentence = "trained on 360 of these, so the figures overstate those on new pictures."
    for trained in (360, 0):
        (run / "report.json").write_text(json.dumps(REPORT | {"trained_on": trained}))
        assert (sentence in make_card(open_model(run / "model"), run / "model", "me/tiny").content) == bool(trained)


def test_card_without_a_run_has_no_results(run: Path, tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    (run / "model").rename(tmp_path / "alone")
    text = (prepare_upload(tmp_path / "alone", "me/tiny", tmp_path / "card") / "README.md").read_text()
    assert "## Use" in text
    assert "## Figures" not in text and "## Training" not in text
    assert "license" not in text


def test_dry_run_prints_the_card_and_lists_the_files(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.rglob("*"))
    assert main(["push", str(run / "model"), "me/tiny", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("---\nlibrary_name: vitkit\n")
    names = [line.split("  ")[0] for line in output.splitlines()[-5:]]
    assert names == sorted([*FILES, "preprocess.json", "README.md"])
    assert sorted(run.rglob("*")) == before


def test_example_of_the_card_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    (tmp_path / "card").mkdir()
    folder = prepare_upload(run / "model", "me/tiny", tmp_path / "card")
    Image.new("L", (20, 20)).save(tmp_path / "picture.jpg")
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = code.replace("hf:me/tiny", f"hf:{folder}").replace("picture.jpg", str(tmp_path / "picture.jpg"))
    exec(code, {})
    assert capsys.readouterr().out.strip() in ("cat", "dög")


def test_example_of_a_multilabel_card_prints_every_class_above_one_half(run: Path, tmp_path: Path) -> None:
    bundle = open_model(run / "model")._replace(multilabel=True)
    assert isinstance(bundle.model, ViT) and isinstance(head := bundle.model.head, torch.nn.Linear)
    torch.nn.init.zeros_(head.weight)
    text = str(make_card(bundle, run / "model", "me/tiny"))
    assert "2 classes, of which a picture may have several: cat, dög." in text
    answer = text.split("```python\n")[1].split("```")[0].splitlines()[-1]
    for bias, names in (((1.0, 2.0), "['cat', 'dög']"), ((-1.0, -2.0), "[]")):
        head.bias.data = torch.tensor(bias)
        with redirect_stdout(out := StringIO()):
            exec(answer, {"bundle": bundle, "images": torch.zeros(1, 1, 8, 12)})
        assert out.getvalue().strip() == names


def test_example_of_a_text_tower_s_card_runs(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    text = (prepare_upload(text_folder, "me/text", tmp_path / "card") / "README.md").read_text()
    assert "pipeline_tag: feature-extraction" in text and "pictures" not in text
    assert "Texts of up to 12 ids become vectors." in text
    code = text.split("```python\n")[1].split("```")[0].replace("hf:me/text", f"hf:{text_folder}")
    exec(code, names := {})
    assert names["vectors"].shape == (2, 24)


def test_model_class_without_a_card_is_refused(run: Path) -> None:
    bundle = open_model(run / "model")._replace(model=torch.nn.Linear(2, 2))
    kinds = "ViT, MAE, CLIP, TextTower, TextDecoder"
    with pytest.raises(ValueError, match=f"must be one of {kinds} to have a card, got a Linear in"):
        make_card(bundle, run / "model", "me/tiny")


@pytest.mark.parametrize("token", [None, "hf_nothing"])
def test_missing_token_or_network_is_a_one_line_error(
    token: str | None, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", token or "")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert huggingface_hub.get_token() == token
    assert main(["push", str(run / "model"), "me/tiny"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert ("could not be uploaded to huggingface.co" if token else "must have a token of the hub, got none") in error
    assert "hf_nothing" not in error


def test_wrong_folders_and_repositories_are_refused_before_the_upload(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="repository must be USER/NAME, got a b/c"):
        push(run / "model", "a b/c")
    with pytest.raises(ValueError, match="model must be a model folder, got timm:vit_tiny_patch16_224"):
        push("timm:vit_tiny_patch16_224", "me/tiny")
    (run / "model" / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="model.safetensors: "):
        push(run / "model", "me/tiny")


class Hub:
    """A hub that records its calls. With `has_card`, its branch main holds a README.md."""

    def __init__(self, has_card: bool) -> None:
        self.has_card = has_card
        self.files: list[str] = []
        self.calls: list[tuple[object, ...]] = []

    def create_repo(self, repository: str, private: bool, exist_ok: bool) -> huggingface_hub.RepoUrl:
        self.calls.append(("repository", repository, private, exist_ok))
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repository}")

    def create_branch(self, repository: str, branch: str, exist_ok: bool) -> None:
        self.calls.append(("branch", repository, branch, exist_ok))

    def list_repo_files(self, repository: str, revision: str | None) -> list[str]:
        has_card = self.has_card and (repository, revision) == ("me/tiny", None)
        return [".gitattributes", *(["README.md"] if has_card else []), *self.files]

    def upload_folder(
        self, repo_id: str, folder_path: Path, revision: str | None, commit_message: str, **patterns: Any
    ) -> None:
        self.calls.append(("folder", repo_id, folder_path, revision, patterns["ignore_patterns"]))
        self.deleted = patterns["delete_patterns"]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("has_card", "revision", "branches", "ignored"),
    [
        (False, None, [], None),
        (True, None, [], ["README.md"]),
        (True, "v1", [("branch", "me/tiny", "v1", True)], None),
    ],
)
def test_upload_keeps_an_existing_card_and_writes_to_the_chosen_branch(
    private: bool,
    has_card: bool,
    revision: str | None,
    branches: Any,
    ignored: Any,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nothing")
    hub = Hub(has_card)
    (run / "model" / "README.md").touch()
    assert upload(run / "model", "me/tiny", private, revision, hub) == "https://huggingface.co/me/tiny"
    assert hub.calls == [
        ("repository", "me/tiny", private, True),
        *branches,
        ("folder", "me/tiny", run / "model", revision, ignored),
    ]


def test_model_on_the_hub_is_replaced_on_request_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nothing")
    hub = Hub(True)
    hub.files = ["config.yaml", "notes.md"]
    with pytest.raises(ValueError, match="must hold no model, got me/tiny, which has config.yaml; add --overwrite"):
        upload(run / "model", "me/tiny", False, None, hub)
    assert [call[0] for call in hub.calls] == ["repository"]
    upload(run / "model", "me/tiny", False, None, hub, overwrite=True)
    assert [call[0] for call in hub.calls] == ["repository", "repository", "folder"]


@pytest.mark.parametrize(
    ("files", "deleted"),
    [
        ([*FILES, "text.json", "tokenizer.json"], {"text.json", "tokenizer.json", "spiece.model", "vocab.json"}),
        (["config.yaml", "text.json"], set()),  # no model of vitkit
    ],
)
def test_upload_removes_the_optional_files_of_an_earlier_model(
    files: list[str], deleted: set[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nothing")
    hub = Hub(True)
    hub.files = files
    upload(run / "model", "me/tiny", False, None, hub, overwrite=True)
    assert {*(hub.deleted or ())} == deleted


def test_command_passes_its_options_to_the_upload(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[Any] = []

    def record(folder: Path, *rest: Any, overwrite: bool) -> str:
        uploads.append((sorted(path.name for path in folder.iterdir()), *rest, overwrite))
        return "https://huggingface.co/me/tiny"

    monkeypatch.setattr("vitkit.convert.hub_upload.upload", record)
    assert main(["push", str(run / "model"), "me/tiny", "--private", "--revision", "v1", "--overwrite"]) == 0
    assert main(["push", str(run / "model"), "me/tiny"]) == 0
    files = sorted([*FILES, "preprocess.json", "README.md"])
    assert uploads == [(files, "me/tiny", True, "v1", True), (files, "me/tiny", False, None, False)]


def test_class_names_are_escaped_in_the_card(run: Path) -> None:
    bundle = open_model(run / "model")
    names = ("a\n# b\u2028c", "<img src=x>", "[d](http://e)", "`f` *g* _h_ |i|", "tench (n1), Tinca")
    line = format_summary(bundle._replace(class_names=names), "ViT").splitlines()[-1]
    assert line == (r"5 classes: a \# b c, \<img src=x\>, \[d\](http://e), \`f\` \*g\* \_h\_ \|i\|, tench (n1), Tinca.")


@pytest.mark.parametrize(
    ("name", "content"), [("config.yaml", "- 1"), ("config.yaml", "1: 2"), ("report.json", "[1]"), ("report.json", "{")]
)
def test_malformed_run_file_is_a_one_line_error(name: str, content: str, run: Path) -> None:
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=f"^{run / name}: ") as raised:
        push(run / "model", "me/tiny")
    assert "\n" not in str(raised.value)


def test_run_values_of_another_type_are_left_out(run: Path, tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    (run / "report.json").write_text(json.dumps({**REPORT, "baselines": {"x": None, "y": 1}, "probes": [1]}))
    (run / "config.yaml").write_text(yaml.safe_dump({"model": [1], "data": None, "trainer": 3, "ema": "x"}))
    text = (prepare_upload(run / "model", "me/tiny", tmp_path / "card") / "README.md").read_text()
    assert "| y | 1.0000 |" in text
    assert "| x |" not in text and "## Training" not in text


def test_card_names_only_the_last_part_of_a_path() -> None:
    assert [shorten_source(path) for path in ("/a/b/c", "../x/y.csv", "digits", "hf:mnist@train", "hf:/a/b", None)] == [
        *("c", "y.csv", "digits", "hf:mnist@train", "b", None)
    ]
    assert format_class({"class_path": "torch.optim.AdamW"}) == "AdamW()"
    assert format_class("torch.optim.AdamW") == "AdamW"
    assert format_class(None) is None
