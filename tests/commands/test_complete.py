import io
import json
from pathlib import Path

import pytest

from vitkit.cli import main
from vitkit.inference.completion import complete
from vitkit.support.errors import escape_controls


def run(*arguments: object) -> int:
    return main(["complete", *map(str, arguments), "--device", "cpu"])


def test_prompt_and_completion_are_printed(
    decoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ((completion,),) = complete(decoder_folder, "Once", 12, device="cpu")
    expected = escape_controls(f"Once{completion.text}") + "\n"
    assert run(decoder_folder, "Once", "--steps", 12) == 0
    assert capsys.readouterr().out == expected
    (tmp_path / "prompt.txt").write_text("Once\n")
    assert run(decoder_folder, tmp_path / "prompt.txt", "--steps", 12) == 0
    assert capsys.readouterr().out == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Once\n")))
    assert run(decoder_folder, "-", "--steps", 12) == 0
    assert capsys.readouterr().out == expected


def test_json_lines_hold_ids_and_log_probabilities(decoder_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (decoder_folder, "Once", "--steps", 5, "--samples", 3, "--temperature", 0.9, "--top-k", 50, "--json")
    assert run(*arguments) == run(*arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == lines[3:]  # the seed is fixed
    rows = [json.loads(line) for line in lines[:3]]
    assert len({tuple(row["ids"]) for row in rows}) > 1
    for row in rows:
        assert row["prompt"] == "Once" and len(row["ids"]) == len(row["log_probs"]) <= 5
        assert row["score"] == pytest.approx(sum(row["log_probs"]))
    assert run(*arguments, "--seed", 1) == 0
    assert capsys.readouterr().out.splitlines() != lines[:3]
    ((best,),) = complete(decoder_folder, "Once", 5, beams=4, alpha=0.6, device="cpu")
    assert run(decoder_folder, "Once", "--steps", 5, "--beams", 4, "--alpha", 0.6, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ids"] == [*best.ids]


def test_several_texts_are_numbered(decoder_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(decoder_folder, "Once", "--steps", 5, "--samples", 2, "--min-p", 0.1, "--top-p", 0.9) == 0
    out = capsys.readouterr().out
    assert out.startswith("1. log-probability -") and "\n2. log-probability -" in out and out.count("\nOnce") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x" * 60], "must fit into the model's context of 48, got 60 ids"),
        (["x", "--steps", "0"], "steps must be at least 1, got steps=0"),
        (["x", "--samples", "2"], "samples must be 1 without --temperature, as all would be equal, got samples=2"),
        (["x", "--beams", "2", "--stop", "a"], "beams must be 1 with sample, edits, stop or samples"),
        (["x", "--top-p", "2"], "top_p and min_p must be from 0 to 1"),
    ],
)
def test_unusable_input_is_a_one_line_error(
    arguments: list[str], message: str, decoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(decoder_folder, *arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and message in captured.err


def test_model_of_another_kind_and_binary_prompt_are_rejected(
    decoder_folder: Path, text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(text_folder, "x") == 1
    assert "model must be a TextDecoder, which continues texts, got TextTower" in capsys.readouterr().err
    (tmp_path / "prompt.bin").write_bytes(b"\xff\xfe")
    assert run(decoder_folder, tmp_path / "prompt.bin") == 1
    assert "a prompt must be text in UTF-8" in capsys.readouterr().err
