import json

import pytest
import torch
from torch.testing import assert_close

from vitkit import models
from vitkit.bench import clip_training
from vitkit.bench.clip_training import (
    OpenClipLoss,
    Tower,
    VitkitLoss,
    build_clips,
    list_emoji_names,
    list_imagenet_prompts,
    make_encoding_steps,
    make_sentences,
)
from vitkit.cli import main
from vitkit.data.tokenizer import Tokenizer
from vitkit.models.sizes import Size


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_training, "PIXELS", 64)
    monkeypatch.setitem(clip_training.TOWERS, "ti", Tower(32, 2, 2, 24))
    monkeypatch.setitem(models.SIZES, "ti", Size(32, 2, 2))


def test_both_models_have_equal_outputs_losses_and_gradients() -> None:
    from open_clip import tokenize

    ours, peer = build_clips("ti")
    texts, images = ["a red heart", "cat", "two cats and a dog"], torch.randn(3, 3, 64, 64)
    encode_ours, encode_theirs = make_encoding_steps(ours.eval(), peer.eval(), texts)
    assert_close(encode_ours(), encode_theirs(), rtol=0, atol=1e-5)
    losses = (
        VitkitLoss(ours)(images, Tokenizer()(texts), torch.arange(3)),
        OpenClipLoss(peer)(images, tokenize(texts)),
    )
    assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    for ours_name, theirs_name in (
        ("text.embed.tokens.weight", "token_embedding.weight"),
        ("log_scale", "logit_scale"),
    ):
        assert_close(ours.get_parameter(ours_name).grad, peer.get_parameter(theirs_name).grad, rtol=1e-4, atol=1e-6)


def test_sentences_are_fixed_and_have_about_twelve_ids() -> None:
    names = list_emoji_names()
    sentences = make_sentences(names)
    assert sentences == make_sentences(names)
    assert sentences[0].startswith("a ") and " to the left of a " in sentences[0]
    lengths = [len(row) for row in Tokenizer().encode_and_cut(sentences)[0]]
    assert 10 < sum(lengths) / len(lengths) < 14
    assert len(set(list_imagenet_prompts())) > 79_000


@pytest.mark.soak
def test_table_has_a_row_for_each_step(capfd: pytest.CaptureFixture[str], tmp_path) -> None:
    path = tmp_path / "rows.json"
    options = ["--batch", "2", "--pairs", "1", "--threads", "1", "--json", str(path), "--device", "cpu"]
    assert main(["bench", "--contrast", "ti", *options, "--dtype", "float32", "bf16-mixed"]) == 0
    rows = json.loads(path.read_text())["rows"]
    steps = [row["step"].rpartition(" ") for row in rows[:4]]
    expected = [("text names", 32), ("text prompts", 32), ("train names", 2), ("train sentences", 2)]
    assert [(step[0], row["samples"]) for step, row in zip(steps, rows, strict=False)] == expected
    assert all(min(row["seconds"]) > 0 and min(row["memory"]) > 0 for row in rows)
    ids = [float(step[2]) for step in steps]
    assert ids[0] < ids[1] < ids[3]
    out = capfd.readouterr().out
    assert out.count("ti/32      float32") == out.count("ti/32      bf16-mixed") == 4


def test_bfloat16_weights_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--contrast", "ti", "--dtype", "bfloat16", "--device", "cpu"]) == 1
    assert "got dtype=bfloat16; take float32 or bf16-mixed" in capsys.readouterr().err
