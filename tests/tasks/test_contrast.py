import csv
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.testing import assert_close

from vitkit import losses
from vitkit.bundle.bundle import Bundle
from vitkit.data.annotations.captions import Captioned
from vitkit.data.images import Images
from vitkit.data.order import Pick
from vitkit.data.pairs import PairBatch, Pairs
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.subset import Subset
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.caption_retrieval import evaluate_pairs
from vitkit.evaluation.recall import retrieve
from vitkit.fit.checkpoint import AtomicIO, Checkpoint
from vitkit.fit.ema import EMA
from vitkit.fit.log import CSV
from vitkit.losses.contrastive import depends_on_bias
from vitkit.models import CLIP, Pair, TextTower, ViT
from vitkit.nn import Encoder, EndOfText, Last, PreNorm
from vitkit.tasks.contrast import Contrast, check_tokenizer

RANKS = Path(__file__).with_name("pairs_ranks.py")
Fit = Callable[..., Trainer]
SIGMOID: dict[str, Any] = {"loss": losses.sigmoid}


def pairs(training: int = 21, validation: int = 23, **options: Any) -> Pairs:
    """Digits with two captions each, many of them equal."""
    reading = {"context": 6} | {name: options.pop(name) for name in ("context", "overflow") if name in options}
    data = Pairs(
        "digits",
        preprocess=Preprocess((8, 8), (0.5,), (0.5,)),
        tokenizer=Tokenizer(**reading),
        **{"batch": 8, **options},
    )
    captions = cast(list[tuple[str, ...]], data.captioned.captions)
    captions[:] = [(text, f"the {text}") for (text,) in captions]
    data.training, data.validation = data.training[:training], data.validation[:validation]
    return data


def clip(bias: float | None = None, dropout: float = 0.0, **text: Any) -> CLIP:
    torch.manual_seed(0)
    residual = partial(PreNorm, dropout=dropout)
    causal = text.get("pool") is not Last
    tower = TextTower(Encoder(16, 1, 2, causal=causal, residual=residual), 49408, 6, 8, **text)
    return CLIP(ViT(Encoder(16, 1, 2, residual=residual), (8, 8), (4, 4), 8, channels=1), tower, bias=bias)


def first(data: Pairs) -> PairBatch:
    return next(iter(data.train_dataloader()))


def gradients(task: Contrast, batch: PairBatch) -> tuple[Tensor, list[Tensor]]:
    task.zero_grad()
    loss = task.compute_loss(batch)
    (loss.total / loss.terms).backward()
    grads = [parameter.grad for parameter in task.model.parameters()]
    assert all(gradient is not None for gradient in grads)
    return loss.total.detach(), [gradient.clone() for gradient in grads if gradient is not None]


def test_loss_with_unique_texts_equals_that_of_all_pairs() -> None:
    data, model = pairs(), clip()
    batch = first(data)
    assert len(batch.ids) < len(batch.rows) == 8
    total, grads = gradients(Contrast(model, lr=1.0), batch)
    model.zero_grad()
    pair = model(batch.images, batch.ids[batch.rows])
    expected = losses.softmax(pair, pair, batch.positives, batch.positives)
    (expected / 8).backward()
    assert_close((total, grads), (expected.detach(), [parameter.grad for parameter in model.parameters()]))


@pytest.mark.parametrize(("bias", "options"), [(None, {}), (-2.0, SIGMOID)], ids=["softmax", "sigmoid"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_gradients_in_chunks_equal_those_of_the_batch(
    chunk: int, bias: float | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of 8, 4 and 3 chunks is smaller; tiles of the logits are tested too."""
    model, batch = clip(bias).double(), first(pairs())
    batch = batch._replace(images=batch.images.double())
    whole = gradients(Contrast(model, lr=1.0, **options), batch)
    assert_close(gradients(Contrast(model, lr=1.0, chunk=chunk, **options), batch), whole, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr("vitkit.losses.tiles.TILE", 24)  # three rows at a time
    assert_close(gradients(Contrast(model, lr=1.0, **options), batch), whole, rtol=1e-10, atol=1e-12)
    assert_close(gradients(Contrast(model, lr=1.0, chunk=chunk, **options), batch), whole, rtol=1e-10, atol=1e-12)


def test_recomputed_chunks_repeat_their_dropout() -> None:
    """Another draw in the backward pass would give wrong gradients."""
    model, batch = clip(dropout=0.3).double(), first(pairs())
    batch = batch._replace(images=batch.images.double())
    task = Contrast(model, lr=1.0, chunk=3)
    torch.manual_seed(5)
    chunked = gradients(task, batch)
    task.zero_grad()
    torch.manual_seed(5)
    image = torch.cat([model.encode_image(part) for part in batch.images.split(3)])
    text = torch.cat([model.encode_text(part) for part in batch.ids.split(3)])[batch.rows]
    pair = model.make_pair(image, text)
    total = losses.softmax(pair, pair, batch.positives, batch.positives)
    (total / 8).backward()
    plain = [parameter.grad for parameter in model.parameters()]
    assert_close(chunked, (total.detach(), plain), rtol=1e-10, atol=1e-12)


def test_two_and_four_processes_equal_one(tmp_path: Path) -> None:
    """Steps of 8, 8 and 5 samples and 23 held out: ranks have unequal shares of pictures and of different texts."""
    train = runpy.run_path(str(RANKS))["train"]
    for sigmoid in (False, True):
        train(1, sigmoid, tmp_path / f"1-{sigmoid}.pt")
    subprocess.run([sys.executable, RANKS, tmp_path], check=True, timeout=240)
    for sigmoid in (False, True):
        one, *others = (torch.load(tmp_path / f"{n}-{sigmoid}.pt", weights_only=True) for n in (1, 2, 4))
        assert len(one["gradients"]) == 2 and len(one["rows"]) == 3
        assert len(one["gradients"][0]) == len(one["weights"]) and "log_scale" in one["weights"]
        for other in others:
            assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_logged_statistics_cover_the_batches_since_the_last_row(trainer: Fit, tmp_path: Path) -> None:
    data, model = pairs(training=32, batch=16), clip()
    batches = [*data.train_dataloader()]  # without a trainer, which would set the epoch
    log = CSV(tmp_path / "metrics.csv", 0)
    trainer(1, logger=log, log_every_n_steps=1).fit(Contrast(model, lr=0.0, varied=0), datamodule=data)
    rows = [*csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())][:2]
    negatives = []
    for row, batch in zip(rows, batches, strict=True):
        pair = model(batch.images, batch.ids[batch.rows])
        same = batch.positives[:, None] == batch.positives
        nearest = (pair.image @ pair.text.T).argmax(1)
        names = ("accuracy", "chance", "ln_batch", "negatives", "scale")
        values = {name: float(row[f"train/{name}"]) for name in names}
        assert values == pytest.approx(
            {
                "accuracy": same[torch.arange(16), nearest].double().mean().item(),
                "chance": same.double().mean().item(),
                "ln_batch": 2.7725887,
                "negatives": 16 - same.sum(1).double().mean().item(),
                "scale": 1 / 0.07,
            }
        )
        negatives.append(values["negatives"])
    assert len({*negatives}) == 2 and max(negatives) < 15


def test_loss_is_float32_under_autocast() -> None:
    data, model = pairs(), clip()
    batch = first(data)
    with torch.autocast("cpu", torch.bfloat16):
        total = Contrast(model, lr=1.0).compute_loss(batch).total
        image, text = model.encode_image(batch.images), model.encode_text(batch.ids)[batch.rows]
    pair = model.make_pair(image, text)
    assert_close(total, losses.softmax(pair, pair, batch.positives, batch.positives), rtol=1e-6, atol=0)


def test_validation_is_recall_over_all_images_and_unique_captions(trainer: Fit) -> None:
    data, model = pairs(), clip()
    task = Contrast(model, lr=1.0)
    trainer().validate(task, datamodule=data, verbose=False)
    with torch.no_grad():
        images = model.encode_image(data.validation_pictures[[Pick(0, sample) for sample in data.validation]].images)
        captions = [data.held_out_captioned.captions[sample] for sample in data.validation]
        texts = list(dict.fromkeys(text for group in captions for text in group))
        features = model.encode_text(data.tokenizer(texts))
    positive_pairs = torch.tensor([(row, texts.index(text)) for row, group in enumerate(captions) for text in group])
    expected = retrieve(data.validation, images, tuple(texts), features, positive_pairs).compute_metrics()
    assert len(texts) < 2 * len(images) == 2 * task.validated
    values = {name.removeprefix("val/"): value for name, value in task.metrics.items()}
    assert values["recall"] == pytest.approx(expected["mean_recall"])
    for name, way in (("text", "image_to_text"), ("image", "text_to_image")):
        assert [values[f"{name}_recall_{k}"] for k in (1, 5, 10)] == pytest.approx(
            [expected[f"{way}_R@{k}"] for k in (1, 5, 10)]
        )
        assert values[f"{name}_median_rank"] == expected[f"{way}_median_rank"]
    pair = model.make_pair(images, features[[texts.index(group[0]) for group in captions]])
    positives = torch.tensor([data.held_out_captioned.positives[sample] for sample in data.validation])
    assert values["loss"] == pytest.approx(
        losses.softmax(pair, pair, positives, positives).item() / len(images), rel=1e-5
    )


def test_captions_that_differ_in_case_are_one_as_in_evaluate(trainer: Fit) -> None:
    data, model = pairs(), clip()
    captions = cast(list[tuple[str, ...]], data.captioned.captions)
    captions[:] = [(text.upper() if row % 2 else f" {text}",) for row, (text, *_) in enumerate(captions)]
    task = Contrast(model, lr=1.0)
    trainer().validate(task, datamodule=data, verbose=False)
    expected = {captions[row][0].strip().lower() for row in data.validation}
    assert task.retrieval is not None and len(task.retrieval.texts) == len(expected)
    preprocess, pictures = data.preprocess, [captions[row] for row in data.validation]
    held_out = Captioned(Subset(data.held_out, data.validation), pictures, [0] * len(pictures), [0] * len(pictures))
    values = evaluate_pairs(Bundle(model, {}, preprocess, tokenizer=data.tokenizer), held_out).numbers
    assert values["mean_recall"] == pytest.approx(task.metrics["val/recall"])


@pytest.mark.parametrize(("bias", "options"), [(None, {}), (-2.0, SIGMOID)], ids=["softmax", "sigmoid"])
def test_validation_uses_averaged_scale_and_bias(bias: float | None, options: dict[str, Any], trainer: Fit) -> None:
    task, data = Contrast(clip(bias), lr=0.1, varied=0, **options), pairs()
    ema = EMA(0.9)
    trainer(1, callbacks=[ema]).fit(task, datamodule=data)  # leaves the averages in the model
    averaged = task.metrics
    trainer().validate(task, datamodule=data, verbose=False)
    assert task.metrics == pytest.approx(averaged)


def test_scale_is_clamped(trainer: Fit) -> None:
    model = clip()
    with torch.no_grad():
        model.log_scale.fill_(4.6)
    sgd = partial(torch.optim.SGD, momentum=0.0)
    sharper = Contrast(
        model, lr=1.0, optimizer=sgd, varied=0, loss=lambda local, _every, a, _b: -1000 * local.scale * len(a)
    )
    trainer(1).fit(sharper, datamodule=pairs())
    assert model.log_scale.exp().item() == pytest.approx(100.0)


class Modes(Callback):
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        model: Any = pl_module.get_submodule("model")
        self.modes = [part.training for part in (model.image, model.image.encoder.blocks[0], model.text)]


def test_frozen_tower_has_no_dropout_and_no_gradient(trainer: Fit) -> None:
    model, modes = clip(dropout=0.5), Modes()
    before = {name: weight.clone() for name, weight in model.image.state_dict().items()}
    task = Contrast(model, lr=0.1, freeze=["image.*"], varied=0)
    assert not model.encode_image(torch.zeros(1, 1, 8, 8)).requires_grad
    trainer(1, callbacks=[modes]).fit(task, datamodule=pairs())
    assert modes.modes == [False, False, True]
    assert_close(model.image.state_dict(), before, rtol=0, atol=0)
    lower = Contrast(clip(dropout=0.5), lr=0.1, freeze=["image.embed.*", "image.encoder.blocks.0.*"], varied=0)
    trainer(1, callbacks=[modes]).fit(lower, datamodule=pairs())
    assert modes.modes == [True, False, True]


@pytest.mark.parametrize(
    ("bias", "options", "message"),
    [
        (-1.0, {}, "model.bias must be null for a loss that does not depend on it, .*, got bias=-1; or take"),
        (None, SIGMOID, "model.bias must be given for a loss that depends on it, such as -10 for .*, got bias=None"),
        (None, {"chunk": 0}, "chunk must be at least 1 and varied at least 0, got chunk=0"),
    ],
)
def test_bias_must_match_the_loss(bias: float | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Contrast(clip(bias), lr=1.0, **options)


def cross_entropy(local: Pair, every: Pair, positives: Tensor, all_positives: Tensor) -> Tensor:
    """The softmax of one direction, where the bias changes only rounding."""
    return torch.nn.functional.cross_entropy(
        local.scale * local.image @ every.text.T + local.bias, torch.arange(len(positives))
    )


class Weighted:
    """A loss as an object with a weight."""

    def __init__(self, loss: Callable[[Pair, Pair, Tensor, Tensor], Tensor], weight: float) -> None:
        self.loss, self.weight = loss, weight

    def __call__(self, local: Pair, every: Pair, positives: Tensor, all_positives: Tensor) -> Tensor:
        return self.weight * self.loss(local, every, positives, all_positives)


def constant(local: Pair, every: Pair, positives: Tensor, all_positives: Tensor) -> Tensor:
    return torch.tensor(1.0)


@pytest.mark.parametrize(
    ("loss", "biased"),
    [
        (losses.softmax, False),
        (losses.sigmoid, True),
        (partial(losses.softmax), False),
        (partial(losses.sigmoid), True),
        (cross_entropy, False),
        (lambda local, every, *positives: losses.sigmoid(local, every, *positives) / len(local.image), True),
        (Weighted(losses.softmax, 10.0), False),
        (Weighted(losses.sigmoid, 0.1), True),
        (constant, False),
    ],
)
def test_dependence_on_the_bias_is_detected(loss: Any, biased: bool) -> None:
    with torch.no_grad():
        assert depends_on_bias(loss) == biased
        Contrast(clip(-1.0 if biased else None), lr=1.0, loss=loss)
        with pytest.raises(ValueError, match="model.bias must be"):
            Contrast(clip(None if biased else -1.0), lr=1.0, loss=loss)


def test_data_that_do_not_suit_the_towers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data must be vitkit.data.pairs.Pairs for Contrast, got Images"):
        Contrast(clip(), lr=1.0).bind(Images("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,))))
    with pytest.raises(ValueError, match="model must be a vitkit.models.CLIP, got ViT"):
        Contrast(clip().image, lr=1.0)
    with pytest.raises(ValueError) as raised:
        Contrast(clip(pool=Last), lr=1.0).bind(pairs(context=7))
    assert (
        "data.tokenizer.context must be the text tower's 6; data.tokenizer.whole must be true for Last; got context=7"
        in str(raised.value)
    )
    with pytest.raises(ValueError, match="pool must look for the end of the vocabulary, end=49407 and not 5"):
        Contrast(clip(pool=partial(EndOfText, end=5)), lr=1.0).bind(pairs())
    small = clip()
    small.text.embed.tokens = torch.nn.Embedding(49407, 16)
    with pytest.raises(ValueError, match="vocabulary must hold all 49,408 ids, and holds 49,407"):
        Contrast(small, lr=1.0).bind(pairs())
    with pytest.raises(ValueError, match="val must hold at least two pictures, got 1"):
        Contrast(clip(), lr=1.0).bind(pairs(validation=1))


def test_text_tower_must_hold_every_id_of_the_vocabulary() -> None:
    tokenizer = Tokenizer(6, vocabulary=300).train(["a red heart, a red cat"] * 9)
    size, small = tokenizer.vocabulary.size, clip(pool=partial(EndOfText, end=0)).text
    assert tokenizer.vocabulary.end == 0
    small.embed.tokens = torch.nn.Embedding(size - 1, 16)
    with pytest.raises(ValueError, match=f"vocabulary must hold all {size} ids, and holds {size - 1}; got context=6"):
        check_tokenizer(small, tokenizer)
    small.embed.tokens = torch.nn.Embedding(size, 16)
    check_tokenizer(small, tokenizer)


def test_unreadable_batch_has_no_terms() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    batch = PairBatch(torch.zeros(0, 1, 8, 8), none.reshape(0, 0), none, none, none, ("gone",))
    for task in (Contrast(clip(), lr=1.0), Contrast(clip(-1.0), lr=1.0, **SIGMOID)):
        loss = task.compute_loss(batch)
        loss.total.backward()
        assert (loss.total.item(), loss.terms) == (0.0, 0)
        assert all(parameter.grad is not None for parameter in task.parameters())


def test_cut_texts_are_counted_and_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    data = pairs(overflow="warn")
    task, batch = Contrast(clip(), lr=1.0), first(data)._replace(cut=2)
    task.tokenizer = data.tokenizer
    for _ in range(3):
        task.compute_loss(batch)
    assert capsys.readouterr().out.count("2 texts of a batch above 6 ids cut off") == 1
    assert task.cut == 6


class Stops(Callback):
    """Raises an error after so many steps, as a kill does."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self.steps:
            raise RuntimeError("stopped")


def test_resume_in_mid_epoch_repeats_captions_and_dropout(trainer: Fit, tmp_path: Path) -> None:
    def run(name: str, stop: int, resume: bool) -> tuple[dict[str, Any], int]:
        folder = tmp_path / name
        callbacks = [EMA(0.9), Checkpoint(every=1), Stops(stop)]
        options = {"callbacks": callbacks, "plugins": [AtomicIO()], "enable_checkpointing": True}
        options |= {"default_root_dir": folder, "log_every_n_steps": 3}  # the kill is between two rows
        run_trainer = trainer(2, logger=CSV(folder / "metrics.csv", 3 if resume else 0), **options)
        task = Contrast(clip(dropout=0.3), lr=1e-2, chunk=2, varied=0)
        torch.manual_seed(3)
        data = pairs(batch=4, overflow="truncate")
        captions = cast(list[tuple[str, ...]], data.captioned.captions)
        captions[:] = [(*group, f"{group[0]} and more than there is room for") for group in captions]
        try:
            run_trainer.fit(task, datamodule=data, ckpt_path=folder / "last.ckpt" if resume else None)
        except RuntimeError as error:
            assert str(error) == "stopped"
        return torch.load(folder / "last.ckpt", weights_only=True), task.total_cut

    (tmp_path / "cut").mkdir()
    (tmp_path / "whole").mkdir()
    whole, lost = run("whole", 0, False)
    assert run("cut", 4, False)[0]["global_step"] == 3
    cut, resumed_lost = run("cut", 0, True)
    assert resumed_lost == lost > 0
    assert cut["global_step"] == whole["global_step"] == 12
    assert_close(cut["state_dict"], whole["state_dict"], rtol=0, atol=0)
    assert_close(cut["current_model_state"], whole["current_model_state"], rtol=0, atol=0)
    assert (tmp_path / "cut" / "metrics.csv").read_text() == (tmp_path / "whole" / "metrics.csv").read_text()
