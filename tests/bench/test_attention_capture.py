"""What it takes to see attention, in this process; processes of their own are started once."""

import json
import subprocess
import sys
import time

import pytest
import torch

from vitkit.bench import attention_capture


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("nothing: a plain forward pass", 0),
        ("the CLS row of every layer", 12 * 6 * 17 * 4),
        ("the last layer, one head", 17 * 17 * 4),
        ("everything: transformers' output_attentions", 12 * 6 * 17 * 17 * 4),
    ],
)
def test_every_row_keeps_what_it_says(
    name: str, kept: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = iter([0.3, *[0.0] * attention_capture.PASSES])  # the first pass takes longer
    step = attention_capture.RUNS[name]

    def delayed(pixels: int) -> attention_capture.Keeping:
        passed = step(pixels)
        return lambda: (time.sleep(next(slow)), passed())[1]

    monkeypatch.setitem(attention_capture.RUNS, name, delayed)
    attention_capture.process(name, 64, torch.get_num_threads())
    assert [*slow] == []
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] == kept
    assert 0 < found["seconds"] < 0.3
    assert found["peak"] >= 0


@pytest.mark.slow
def test_a_row_is_a_process_of_its_own() -> None:
    first = next(attention_capture.compare(64, threads=1))
    assert str(first).startswith("nothing: a plain forward pass")
    assert (first.seconds / first.plain[1], first.kept) == (1, 0)
    assert first.plain[0] == max(first.peak, 1)  # loading may have taken more than so small a pass


def test_patches_must_divide_the_image() -> None:
    with pytest.raises(ValueError, match="attention must be a multiple of 16 pixels, got attention=1000"):
        next(attention_capture.compare(1000, threads=1))


@pytest.mark.slow
def test_a_process_that_fails_is_told() -> None:
    with pytest.raises(ValueError, match=r"nobody at 64 x 64 pixels failed with 1: KeyError: 'nobody'"):
        attention_capture.measured("nobody", 64, threads=1)


@pytest.mark.skipif(not attention_capture.CLEAR.exists(), reason="the greatest size of a process falls on Linux alone")
def test_what_was_held_before_does_not_hide_what_a_pass_takes() -> None:
    code = (  # in a process of its own, as a row is: elsewhere there may be room that was freed and is still held
        "import torch; from vitkit.bench import attention_capture\n"
        "torch.ones(50_000_000)  # 200 MB, gone at once\n"
        "attention_capture.forget(); before = attention_capture.greatest(); torch.ones(25_000_000)\n"
        "print(attention_capture.greatest() - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 90e6 < int(ran.stdout) < 120e6
