"""Bits per byte of a model folder on texts, against a loop over ids, and the command."""

import json
import math
from pathlib import Path

import pytest
import torch

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save_config
from vitkit.bundle.weights import save_weights
from vitkit.cli import main
from vitkit.convert.open import open_model
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.bits_per_byte import evaluate_texts
from vitkit.models import TextDecoder
from vitkit.nn import Encoder

TEXTS = ("the first text", "a second", "naïve")
CONTEXT = 8


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(TEXTS):
        (tmp_path / "texts" / f"{number}.txt").write_text(text, "utf-8")
    return tmp_path / "texts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 32, "depth": 2, "heads": 4, "causal": True}}
    arguments = {"vocabulary": 257, "context": CONTEXT, "encoder": encoder}
    config = {"class_path": "vitkit.models.TextDecoder", "init_args": arguments}
    save_config(tmp_path / "model", config, None, (), False, Tokenizer(CONTEXT, vocabulary="bytes"))
    decoder = TextDecoder(Encoder(32, 2, 4, causal=True), 257, CONTEXT)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    save_weights(tmp_path / "model", decoder.state_dict())
    return tmp_path / "model"


@pytest.mark.parametrize("text", TEXTS)
def test_bits_per_byte_equal_a_loop_over_ids(text: str, folder: Path, texts: Path) -> None:
    """Windows of eight ids: each window after the first predicts its last four."""
    numbers = evaluate_texts(folder, str(texts / f"{TEXTS.index(text)}.txt")).numbers
    model, ids, nats = open_model(folder).model.eval(), [256, *text.encode(), 256], 0.0
    for place in range(1, len(ids)):
        last = len(ids) - 1 - CONTEXT  # where the last window begins
        window = min(max(0, -(-(place - CONTEXT) // 4)) * 4, max(0, last))
        logits = model(torch.tensor([ids[window:place]]))[0, -1]
        nats -= logits.log_softmax(-1)[ids[place]].item()
    assert (numbers["bytes"], numbers["ids"]) == (len(text.encode()), len(ids) - 1)
    assert numbers["bits_per_byte"] == pytest.approx(nats / math.log(2) / numbers["bytes"], rel=1e-5)
    assert numbers["perplexity"] == pytest.approx(math.exp(nats / numbers["ids"]), rel=1e-5)
    assert len(numbers["bits_by_position"]) == min(CONTEXT, len(ids) - 1)


def test_command_reports_texts_and_those_left_out(
    folder: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (texts / "3.txt").write_bytes(b"\xff")
    assert main(["evaluate", str(folder), str(texts), "--device", "cpu"]) == 1
    out, error = capsys.readouterr()
    report = json.loads((folder.parent / "evaluation" / "texts" / "report.json").read_text("utf-8"))
    size = sum(len(text.encode()) for text in TEXTS)
    assert (report["texts"], report["bytes"], report["ids"]) == (3, size, size + 3)
    assert f"bits per byte{report['bits_per_byte']:>25.3f}\n" in out and "perplexity of an id" in out
    assert "error: 1 of 4 texts could not be read, and do not count\n" in error
    assert (folder.parent / "evaluation" / "texts" / "positions.png").is_file()
    assert "picture" not in out + error


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--knn",), "knn must be left out for a TextDecoder"), (("--columns", "a", "b"), "columns must be left out")],
)
def test_options_of_pictures_are_refused(
    options: tuple[str, ...], message: str, folder: Path, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(folder), str(texts), *options]) == 1
    assert message in capsys.readouterr().err


def test_model_of_pictures_or_without_readable_texts_is_refused(folder: Path, texts: Path) -> None:
    with pytest.raises(ValueError, match="model must be a TextDecoder"):
        evaluate_texts(Bundle(torch.nn.Identity(), {}, None), str(texts))
    for path in texts.iterdir():
        path.write_text("")
    with pytest.raises(ValueError, match="source must hold a text that can be read, got none"):
        evaluate_texts(folder, str(texts))
