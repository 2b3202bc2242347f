"""The objective of a language model. Fits are in tests/fit/test_text_fit.py."""

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitkit.data.corpus import WindowBatch, number_documents
from vitkit.losses import tiles
from vitkit.models import TextDecoder
from vitkit.nn import ALiBi, Encoder, Learned, NoPositions, Position, Rotary
from vitkit.tasks.language_modelling import LanguageModelling

START = 16


def make_batch(*rows: list[int]) -> WindowBatch:
    """Return a window of each row but for its last id, which is only a target."""
    windows = torch.tensor(rows)
    targets = windows[:, 1:].clone()
    return WindowBatch(windows[:, :-1], targets, *number_documents(windows[:, :-1], START), torch.arange(len(rows)))


def make_decoder(position: Callable[[int, int], Position] = Position, table: type[nn.Module] = Learned) -> TextDecoder:
    return TextDecoder(Encoder(32, 2, 4, causal=True, position=position), START + 1, 24, table=table)


SCHEMES = [(Position, Learned), (Rotary, NoPositions), (ALiBi, NoPositions)]


@pytest.mark.parametrize(("position", "table"), SCHEMES)
def test_packed_texts_are_predicted_as_they_are_alone(
    position: Callable[[int, int], Position], table: type[nn.Module], randomise: Callable[[nn.Module], nn.Module]
) -> None:
    """Texts of 1, 7 and 12 ids in one window: the loss is the sum of theirs."""
    task = LanguageModelling(randomise(make_decoder(position, table)), lr=1.0)
    texts = [torch.randint(START, (size,)).tolist() for size in (1, 7, 12)]
    packed = make_batch([id for text in texts for id in [START, *text]] + [START])
    assert packed.documents is not None and packed.documents.max() == 3
    alone = [make_batch([START, *text, START]) for text in texts]
    assert all(batch.documents is None for batch in alone)
    losses = [task.compute_loss(batch) for batch in alone]
    whole = task.compute_loss(packed)
    assert_close(whole.total, torch.stack([loss.total for loss in losses]).sum(), rtol=1e-12, atol=1e-12)
    assert whole.terms == sum(loss.terms for loss in losses) == 23


def test_loss_in_tiles_equals_the_cross_entropy_of_all_logits(
    randomise: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = LanguageModelling(randomise(make_decoder()), lr=1.0, label_smoothing=0.1)
    task.train()
    batch = make_batch(*torch.randint(START, (3, 21)).tolist())
    batch.targets[1, 5:] = -100
    logits = task.decoder(batch.ids)
    criterion = nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1)
    naive = criterion(logits.flatten(0, 1), batch.targets.flatten())
    monkeypatch.setattr(tiles, "TILE", 5 * (START + 1))
    loss = task.compute_loss(batch)
    assert loss.terms == 45
    assert_close(loss.total, naive)
    parameters = [*task.parameters()]
    assert_close(torch.autograd.grad(loss.total, parameters), torch.autograd.grad(naive, parameters))


def test_first_loss_is_that_of_equal_probabilities() -> None:
    decoder = TextDecoder(Encoder(64, 2, 4, causal=True), 257, 32)
    task = LanguageModelling(decoder, lr=1.0).eval()
    batch = make_batch(*torch.randint(START, (8, 25)).tolist())
    loss, chance = task.compute_loss(batch), task.compute_chance(batch)
    assert chance.loss == math.log(257) and loss.total.item() / loss.terms == pytest.approx(chance.loss, rel=0.02)


def test_floor_is_the_entropy_of_what_follows_equal_beginnings() -> None:
    task = LanguageModelling(make_decoder(), lr=1.0)
    assert task.compute_floor(make_batch([1, 2, 3], [2, 2, 3])) == 0
    assert task.compute_floor(make_batch([1, 2, 3], [1, 3, 3])) == pytest.approx(math.log(2) / 2)
    assert task.compute_floor(make_batch([1, START, 3, START, 5])) == pytest.approx(math.log(2) / 2)


def test_smoothing_is_of_training_alone_and_removed_to_overfit() -> None:
    batch = make_batch(*torch.randint(START, (2, 9)).tolist())
    task = LanguageModelling(make_decoder(), lr=1.0, label_smoothing=0.3)
    smooth, plain = (cast(LanguageModelling, task.train(mode)).compute_loss(batch).total for mode in (True, False))
    assert smooth != plain
    task.train().simplify()
    assert task.compute_loss(batch).total == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing must be in"),
        ({"sample_length": -1}, "sample_length must be at least"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LanguageModelling(make_decoder(), lr=1.0, **options)
