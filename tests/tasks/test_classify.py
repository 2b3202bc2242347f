from collections.abc import Callable

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.testing import assert_close

from vitkit.data.images import Images
from vitkit.data.order import derive
from vitkit.tasks.classify import Classify


def test_label_smoothing_mixes_the_label_with_all_classes(model: nn.Module, few: Callable[..., Images]) -> None:
    batch = next(iter(few(batch=6).train_dataloader()))
    target = 0.8 * nn.functional.one_hot(batch.labels, 10) + 0.2 / 10
    expected = -(target * model(batch.images).log_softmax(1)).sum()
    loss = Classify(model, lr=1.0, label_smoothing=0.2).loss(batch)
    assert_close(loss.total, expected)
    assert loss.terms == 6
    with pytest.raises(ValueError, match="got label_smoothing=1.0"):
        Classify(model, lr=1.0, label_smoothing=1.0)


def test_validation_counts_labels_by_predictions_and_does_not_smooth(
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


def test_dropout_is_another_on_each_rank_and_batch_and_the_same_again(
    model: nn.Module, few: Callable[..., Images], trainer: Callable[..., Trainer]
) -> None:
    drawn = []

    class Draws(Classify):
        def training_step(self, batch, batch_idx):
            drawn.append(torch.rand(1).item())
            return super().training_step(batch, batch_idx)

    for _ in range(2):
        torch.manual_seed(7)
        trainer(2).fit(Draws(model, lr=1e-3), datamodule=few(batch=8))
    assert len(set(drawn)) == 6 and drawn[:6] == drawn[6:]
    torch.manual_seed(derive(7, 1, 0, 0))  # seed, rank 1, epoch, batch
    assert torch.rand(1).item() not in drawn
    torch.manual_seed(derive(7, 0, 1, 2))
    assert torch.rand(1).item() == drawn[5]
