import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm.loss
import torch
from lightning.pytorch import Callback, Trainer
from sklearn.metrics import average_precision_score, balanced_accuracy_score
from torch import nn
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.bundle import model_config
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import save
from vitkit.data.batches import Reading
from vitkit.data.images import Images
from vitkit.data.order import Balanced, derive_seed
from vitkit.data.pairs import Pairs
from vitkit.data.pictures import Batch
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.baselines import evaluate_baselines
from vitkit.evaluation.classification import evaluate
from vitkit.evaluation.metrics import count_confusion
from vitkit.fit.log import CSV
from vitkit.losses import binary_cross_entropy, cross_entropy
from vitkit.models import ViT
from vitkit.nn import Encoder, PreNorm
from vitkit.tasks.classify import Classify, compute_class_weights


def test_data_without_labels_are_refused(model: nn.Module) -> None:
    data = Pairs("digits", preprocess=Preprocess((8, 8), (0.5,), (0.5,)), tokenizer=Tokenizer(context=6))
    with pytest.raises(ValueError, match="^data must give a label of each sample for Classify, got Pairs$"):
        Classify(model, lr=1.0).bind(data)


def test_label_smoothing_equals_smoothed_targets(model: nn.Module, few: Callable[..., Images]) -> None:
    batch = next(iter(few(batch=6).train_dataloader()))
    target = 0.8 * nn.functional.one_hot(batch.labels, 10) + 0.2 / 10
    expected = -(target * model(batch.images).log_softmax(1)).sum()
    loss = Classify(model, lr=1.0, label_smoothing=0.2).compute_loss(batch)
    assert_close(loss.total, expected)
    assert loss.terms == 6
    with pytest.raises(ValueError, match="got label_smoothing=1.0"):
        Classify(model, lr=1.0, label_smoothing=1.0)


def test_validation_has_a_confusion_matrix_and_no_smoothing(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    data, task = few(batch=4, validation=30), Classify(model, lr=1.0, label_smoothing=0.2)
    metrics = trainer().validate(task, datamodule=data, verbose=False)[0]
    with torch.no_grad():
        results = [(model(images), labels) for images, labels, *_ in data.val_dataloader()]
    logits, labels = (torch.cat(parts) for parts in zip(*results, strict=True))
    expected = torch.zeros(10, 10, dtype=torch.int64)
    for label, prediction in zip(labels, logits.argmax(1), strict=True):
        expected[label, prediction] += 1
    assert torch.equal(task.confusion, expected) and expected.sum() == 30
    assert metrics["val/accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert metrics["val/loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)


def test_dropout_is_seeded_by_rank_epoch_and_batch(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    draws = []

    class Draws(Classify):
        def training_step(self, batch, batch_idx):
            draws.append(torch.rand(1).item())
            return super().training_step(batch, batch_idx)

    for _ in range(2):
        torch.manual_seed(7)
        trainer(2).fit(Draws(model, lr=1e-3), datamodule=few(batch=8))
    assert len(set(draws)) == 6 and draws[:6] == draws[6:]
    torch.manual_seed(derive_seed(7, 1, 0, 0))  # seed, rank 1, epoch, batch
    assert torch.rand(1).item() not in draws
    torch.manual_seed(derive_seed(7, 0, 1, 2))
    assert torch.rand(1).item() == draws[5]


def first(data: Images) -> Batch:
    return next(iter(data.train_dataloader()))


def test_binary_cross_entropy_of_single_labels_equals_timm(model: nn.Module, few: Callable[..., Images]) -> None:
    batch = first(few(batch=6))
    loss = Classify(model, lr=1.0, loss=binary_cross_entropy, label_smoothing=0.1).compute_loss(batch)
    peer = timm.loss.BinaryCrossEntropy(smoothing=0.1, reduction="mean")
    assert_close(loss.total / loss.terms, peer(model(batch.images), batch.labels))


def test_class_weights_multiply_the_loss_of_each_image(model: nn.Module, few: Callable[..., Images]) -> None:
    data = few(batch=6)
    batch, weights = first(data), [float(weight) for weight in range(1, 11)]
    task = Classify(model, lr=1.0, class_weights=weights, label_smoothing=0.2)
    task.bind(data)
    plain = Classify(model, lr=1.0, label_smoothing=0.2)
    expected = sum(
        weights[int(label)] * plain.compute_loss(Batch(image[None], label[None], batch.indices[:1])).total
        for image, label in zip(batch.images, batch.labels, strict=True)
    )
    loss = task.compute_loss(batch)
    assert_close(loss.total, expected)
    assert loss.terms == 6


def test_balanced_weights_give_every_class_the_same_total(few: Callable[..., Images]) -> None:
    data = few(training=200)
    labels = torch.tensor([data.source.labels[sample] for sample in data.training])
    weights = compute_class_weights("balanced", data)
    counts = torch.bincount(labels, minlength=10)
    assert_close(weights * counts, torch.full((10,), 20.0))
    assert weights[labels].mean() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="class_weights must be one for each of 10 classes, got"):
        compute_class_weights([1.0, 2.0], data)


def test_class_weights_with_mixing_are_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="class_weights must not meet mix"):
        Classify(model, lr=1.0, class_weights="balanced", mix=[v2.MixUp()])


@pytest.mark.parametrize("mix", [v2.MixUp(alpha=1.0), v2.CutMix(alpha=1.0)])
def test_mixing_blends_images_and_targets(mix: v2.Transform, model: nn.Module, few: Callable[..., Images]) -> None:
    batch = first(few(batch=6))
    task = Classify(model, lr=1.0, mix=[mix], label_smoothing=0.1)
    torch.manual_seed(3)
    loss = task.compute_loss(batch)
    torch.manual_seed(3)
    torch.randint(1, ())
    images, targets = mix(batch.images, nn.functional.one_hot(batch.labels, 10).float())
    assert not torch.equal(images, batch.images)
    assert_close(loss.total, nn.functional.cross_entropy(model(images), 0.9 * targets + 0.01, reduction="sum"))
    plain = Classify(model, lr=1.0, label_smoothing=0.1)
    assert_close(task.eval().compute_loss(batch).total, plain.eval().compute_loss(batch).total)


def test_one_mixing_is_drawn_for_each_batch(model: nn.Module, few: Callable[..., Images]) -> None:
    names: list[str] = []

    class Marks(v2.Transform):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            names.append(self.name)
            return inputs

    task, batch = Classify(model, lr=1.0, mix=[Marks("a"), Marks("b")]), first(few(batch=2))
    for _ in range(200):
        task.compute_loss(batch)
    assert 70 < names.count("a") < 130 and len(names) == 200


@pytest.fixture
def multilabel(few: Callable[..., Images]) -> Images:
    """Digits with the labels even, small, both or neither."""
    data = few(batch=8, training=60, validation=31)
    data.source.class_names = ("even", "small")
    data.source.labels = [
        tuple(kind for kind, has in enumerate((label % 2 == 0, label < 5)) if has) for label in data.source.labels
    ]
    return data


def test_multilabel_has_binary_cross_entropy_and_average_precision(
    multilabel: Images, trainer: Callable[..., Trainer]
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    task, batch = Classify(model, lr=0.01), first(multilabel)
    assert (batch.labels.dtype, batch.labels.shape) == (torch.bool, (8, 2))
    expected = nn.functional.binary_cross_entropy_with_logits(
        model(batch.images), batch.labels.float(), reduction="sum"
    )
    assert_close(task.compute_loss(batch).total, expected / 2)
    trainer(4).fit(task, datamodule=multilabel)
    logits, labels = zip(*[(model(batch.images), batch.labels) for batch in multilabel.val_dataloader()], strict=True)
    truth = torch.cat(labels).numpy(), torch.cat(logits).detach().numpy()
    assert task.metrics["val/mAP"] == pytest.approx(average_precision_score(*truth), abs=1e-6)
    assert task.metrics["val/mAP"] > 0.75 and task.score == "val/mAP" and task.validated == 31


def test_balanced_multilabel_weights_are_negatives_per_positive(multilabel: Images) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    task, batch = Classify(model, lr=0.01, class_weights="balanced"), first(multilabel)
    task.bind(multilabel)
    labels = multilabel.source.labels
    yes = sum(len(labels[sample]) > 0 and 0 in labels[sample] for sample in multilabel.training)
    assert task.weights is not None and task.weights[0] == pytest.approx((60 - yes) / yes)
    expected = binary_cross_entropy(model(batch.images), batch.labels.float(), task.weights).sum()
    assert_close(task.compute_loss(batch).total, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": cross_entropy}, "loss must take multilabel targets, got cross_entropy"),
        ({"label_smoothing": 0.1}, "label_smoothing must be 0 for multilabel data, got 0.1"),
        (
            {"loss": binary_cross_entropy, "class_weights": "balanced"},
            "class_weights must be left out with",
        ),
    ],
)
def test_single_label_options_are_refused_for_multilabel(
    options: dict[str, Any], message: str, multilabel: Images
) -> None:
    with pytest.raises(ValueError, match=message):
        Classify(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), lr=0.1, **options).bind(multilabel)


def test_recall_is_the_mean_over_classes(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    data, task = few(batch=4, validation=35), Classify(model, lr=1.0)
    trainer().validate(task, datamodule=data, verbose=False)
    truth, predicted = (
        task.confusion.nonzero()[:, axis].repeat_interleave(task.confusion[task.confusion > 0]) for axis in (0, 1)
    )
    assert task.metrics["val/recall"] == pytest.approx(balanced_accuracy_score(truth, predicted))


def test_evaluation_of_the_saved_model_equals_validation(
    few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": {"dim": 16, "depth": 1, "heads": 2}}
    sizes = {"image_size": [8, 8], "patch_size": [4, 4], "outputs": 10, "channels": 1}
    config = {"class_path": "vitkit.models.ViT", "init_args": {**sizes, "encoder": encoder}}
    network = model_config.build_model(config)
    data, task = few(training=1437, validation=360, batch=200), Classify(network, lr=1e-2)
    trainer(2).fit(task, datamodule=data)
    save(tmp_path / "model", Bundle(network, config, data.preprocess, data.class_names))
    evaluation = evaluate(tmp_path / "model", "digits", fold=0, linear=False, reading=Reading(64))
    assert evaluation.numbers["pictures"] == task.validated == 360
    assert {"top1", "top5", "macro_recall", "expected_calibration_error"} < {*task.evaluation}
    assert task.evaluation == pytest.approx({name: evaluation.numbers[name] for name in task.evaluation}, rel=1e-5)
    assert torch.equal(task.confusion, count_confusion(evaluation.logits, evaluation.labels))
    assert task.evaluation["top1"] == task.metrics["val/accuracy"] > 0.2
    baselines = evaluate_baselines(data).accuracy
    assert task.frequencies == evaluation.numbers["baselines"] == {"most frequent class": 0.1}
    assert {name: baselines[name] for name in task.frequencies} == task.frequencies
    assert baselines["20-NN on pixels"] == evaluation.numbers["probes"]["20-NN on pixels"] > 0.9


def make_dropping_head(dim: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(dim, outputs))


class Outputs(Callback):
    """The encoder's outputs in a run, twice, then in evaluation mode; and twice those of the rest of the model."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Batch, batch_idx: int) -> None:
        model, training = pl_module.model, pl_module.training
        self.encoded = [model.encoder(*model.embed(batch.images)) for _ in range(2)]
        self.logits = [model.head(model.pool(self.encoded[0])) for _ in range(2)]
        pl_module.eval()
        self.encoded.append(model.encoder(*model.embed(batch.images)))
        pl_module.train(training)


def test_frozen_encoder_has_neither_dropout_nor_drop_path(
    few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    encoder = Encoder(16, 2, 2, drop_path=0.5, residual=partial(PreNorm, dropout=0.3))
    model = ViT(encoder, (8, 8), (4, 4), outputs=10, channels=1, head=make_dropping_head)
    outputs = Outputs()
    task = Classify(model, lr=0.1, freeze=["embed.*", "encoder.*"])
    trainer(2, callbacks=[outputs]).fit(task, datamodule=few(batch=8, validation=8))
    first, second, expected = outputs.encoded
    assert torch.equal(first, second) and torch.equal(first, expected)
    assert not torch.equal(*outputs.logits)


def test_block_that_is_not_frozen_drops(few: Callable[..., Images], trainer: Callable[..., Trainer]) -> None:
    encoder = Encoder(16, 2, 2, drop_path=0.5)
    outputs = Outputs()
    task = Classify(ViT(encoder, (8, 8), (4, 4), outputs=10, channels=1), lr=0.1, freeze=["encoder.blocks.0.*"])
    trainer(callbacks=[outputs]).fit(task, datamodule=few(batch=8, validation=8))
    assert [block.training for block in encoder.blocks] == [False, True]
    assert not torch.equal(outputs.encoded[0], outputs.encoded[1])


def test_only_frozen_parameters_stay(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    task = Classify(model, lr=0.1, freeze=["embed.*", "encoder.blocks.0.attn*"])
    trainer().fit(task, datamodule=few(batch=8))
    same = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    frozen = {name for name in before if name.startswith(("embed.", "encoder.blocks.0.attn"))}
    assert same == frozen
    with pytest.raises(ValueError, match="freeze must match parameters, got decoder.*; they are called embed.prefix,"):
        Classify(model, lr=0.1, freeze=["head.*", "decoder.*"])
    with pytest.raises(ValueError, match="freeze must leave something to train"):
        Classify(model, lr=0.1, freeze=["*"])


def test_layer_decay_sets_the_rate_of_each_layer(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    run_trainer = trainer(max_steps=1, logger=CSV(tmp_path / "metrics.csv", 0), log_every_n_steps=1)
    run_trainer.fit(Classify(model, lr=0.1, layer_decay=0.5), datamodule=few())
    (row,) = [row for row in csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()) if row["lr"]]
    assert float(row["lr"]) == 0.1  # the peak, not the first group's
    rates = {group["name"]: group["initial_lr"] for group in run_trainer.optimizers[0].param_groups}
    assert rates["layer 0 plain"] == 0.025 and rates["layer 1 decayed"] == 0.05 and rates["layer 2 plain"] == 0.1


def test_targets_sum_to_one_under_autocast(model: nn.Module, few: Callable[..., Images]) -> None:
    sums: list[torch.Tensor] = []

    def watch(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        sums.append(targets)
        return cross_entropy(logits, targets)

    task = Classify(model, lr=1.0, mix=[v2.MixUp(alpha=1.0)], loss=watch)
    with torch.autocast("cpu", torch.bfloat16):
        task.compute_loss(first(few(batch=7)))
    assert sums[0].dtype == torch.float32
    assert_close(sums[0].sum(1), torch.ones(7))


def test_reduced_loss_is_refused(model: nn.Module, few: Callable[..., Images]) -> None:
    with pytest.raises(ValueError, match=r"loss must give one value for each of 6 pictures, got \(\)"):
        Classify(model, lr=1.0, loss=nn.functional.cross_entropy).compute_loss(first(few(batch=6)))


def test_invalid_class_weights_are_refused(model: nn.Module, few: Callable[..., Images]) -> None:
    with pytest.raises(ValueError, match="class_weights must not meet data.draw = Balanced"):
        Classify(model, lr=1.0, class_weights="balanced").bind(few(draw=Balanced()))
    with pytest.raises(ValueError, match="class_weights must be finite and at least 0"):
        Classify(model, lr=1.0, class_weights=[-1.0] * 10).bind(few())
