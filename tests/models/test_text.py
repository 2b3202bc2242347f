from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.testing import assert_close

from vitkit.models import TextTower
from vitkit.nn import Encoder, EndOfText, Last, Rotary, Sinusoidal
from vitkit.nn.pool import TextPool

END = 9
IDS = torch.tensor([[3, 5, END, 0], [3, 4, 5, END], [3, END, 0, 0]])


def tower(randomise: Callable[[nn.Module], nn.Module], causal: bool = True, **slots: object) -> TextTower:
    encoder = Encoder(16, 2, 2, causal=causal, position=partial(Rotary, axes=1))
    made = randomise(TextTower(encoder, 12, 7, 6, **{"pool": partial(EndOfText, end=END), **slots}))
    assert isinstance(made, TextTower)
    return made


@pytest.mark.parametrize("slots", [{}, {"table": Sinusoidal}], ids=["learned", "sinusoidal"])
def test_texts_cut_at_their_longest_give_what_padded_ones_give(randomise, slots):
    text = tower(randomise, **slots)
    whole = text(pad(IDS, (0, 3)))
    assert_close(text(IDS), whole)
    assert_close(text(IDS[:1, :3]), whole[:1])  # alone and shorter
    assert_close(text(IDS[2:, :2]), whole[2:])


def test_what_follows_the_end_changes_nothing_and_what_is_before_it_does(randomise):
    text, other = tower(randomise), IDS.clone()
    other[0, 3], other[2, 2:] = 7, torch.tensor([END, 4])
    assert_close(text(other), text(IDS))
    other[0, 1] = 6
    assert (text(other) - text(IDS))[0].abs().min() > 1e-6


def test_a_whole_text_is_read_to_its_last_place_and_in_both_directions(randomise):
    text = tower(randomise, causal=False, pool=Last)
    ids = pad(IDS, (0, 3))
    other = ids.clone()
    other[0, 4] = 7  # a token of padding, which such a model reads
    assert (text(other) - text(ids))[0].abs().min() > 1e-6
    assert torch.equal(text.features(ids)[:, -1] @ text.head.weight.T + text.head.bias, text(ids))


def test_a_whole_text_of_another_length_is_refused(randomise):
    with pytest.raises(ValueError, match="ids must be padded to context=7, got 4 in a row"):
        tower(randomise, causal=False, pool=Last)(IDS)


class Middle(TextPool):
    """Declares that it must get whole texts, as a pool of anybody's may."""

    whole = True

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return x[:, x.shape[1] // 2]


def test_a_pool_says_whether_texts_are_whole(randomise):
    assert not tower(randomise).whole
    text = tower(randomise, causal=False, pool=Middle)
    assert text.whole and text(pad(IDS, (0, 3))).shape == (3, 6)
    with pytest.raises(ValueError, match="ids must be padded to context=7, got 4 in a row"):
        text(IDS)


def test_a_text_above_the_context_is_refused(randomise):
    with pytest.raises(ValueError, match="ids must be at most context=7 long, got 8; cut the text"):
        tower(randomise)(pad(IDS, (0, 4)))


def test_padding_must_not_be_looked_at(randomise):
    with pytest.raises(ValueError, match="encoder must be causal for EndOfText"):
        tower(randomise, causal=False)


def test_without_outputs_what_is_pooled_is_the_answer(randomise):
    text = TextTower(Encoder(16, 1, 2, causal=True), 12, 7, 0, pool=partial(EndOfText, end=END))
    assert text.outputs == 16
    assert torch.equal(text(IDS), text.features(IDS)[torch.arange(3), torch.tensor([2, 3, 1])])
