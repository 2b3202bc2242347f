"""The cost of capturing attention, mostly measured in this process."""

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
def test_size_of_the_kept_weights(
    name: str, kept: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = iter([0.3, *[0.0] * attention_capture.PASSES])  # the first pass takes longer
    prepare = attention_capture.RUNS[name]

    def prepare_slow_pass(pixels: int) -> attention_capture.ForwardPass:
        forward = prepare(pixels)
        return lambda: (time.sleep(next(delays)), forward())[1]

    monkeypatch.setitem(attention_capture.RUNS, name, prepare_slow_pass)
    attention_capture.print_cost(name, 64, torch.get_num_threads())
    assert [*delays] == []
    cost = json.loads(capsys.readouterr().out)
    assert cost["kept"] == kept
    assert 0 < cost["seconds"] < 0.3
    assert cost["peak"] >= 0


@pytest.mark.slow
def test_first_row_is_the_plain_pass_in_a_new_process() -> None:
    first = next(attention_capture.compare(64, threads=1))
    assert str(first).startswith("nothing: a plain forward pass")
    assert (first.seconds / first.plain[1], first.kept) == (1, 0)
    assert first.plain[0] == max(first.peak, 1)  # 0 if loading needed more memory than so small a pass


def test_patches_must_divide_the_image() -> None:
    with pytest.raises(ValueError, match="attention must be a multiple of 16 pixels, got attention=1000"):
        next(attention_capture.compare(1000, threads=1))


@pytest.mark.slow
def test_failing_process_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"nobody at 64 x 64 pixels failed with 1: KeyError: 'nobody'"):
        attention_capture.run_process("nobody", 64, threads=1)


@pytest.mark.skipif(not attention_capture.CLEAR.exists(), reason="the peak of a process can be reset only on Linux")
def test_peak_memory_is_reset() -> None:
    code = (  # in a new process: this one may hold freed memory
        "import torch; from vitkit.bench import attention_capture\n"
        "torch.ones(50_000_000)  # 200 MB, freed at once\n"
        "attention_capture.reset_peak_memory(); before = attention_capture.read_peak_memory(); torch.ones(25_000_000)\n"
        "print(attention_capture.read_peak_memory() - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 90e6 < int(ran.stdout) < 120e6
