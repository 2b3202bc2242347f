import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.testing import assert_close

from vitkit.models import TextDecoder, TextTower
from vitkit.nn import ALiBi, Encoder, EndOfText, Last, NoPositions, Rotary, Sinusoidal, masks
from vitkit.nn.pool import TextPool

END = 9
IDS = torch.tensor([[3, 5, END, 0], [3, 4, 5, END], [3, END, 0, 0]])


def build_tower(randomise: Callable[[nn.Module], nn.Module], causal: bool = True, **slots: object) -> TextTower:
    encoder = Encoder(16, 2, 2, causal=causal, position=partial(Rotary, axes=1))
    text = randomise(TextTower(encoder, 12, 7, 6, **{"pool": partial(EndOfText, end=END), **slots}))
    assert isinstance(text, TextTower)
    return text


@pytest.mark.parametrize("slots", [{}, {"table": Sinusoidal}], ids=["learned", "sinusoidal"])
def test_truncated_padding_gives_equal_embeddings(randomise, slots):
    text = build_tower(randomise, **slots)
    whole = text(pad(IDS, (0, 3)))
    assert_close(text(IDS), whole)
    assert_close(text(IDS[:1, :3]), whole[:1])  # alone and shorter
    assert_close(text(IDS[2:, :2]), whole[2:])


def test_embedding_depends_only_on_tokens_up_to_the_end(randomise):
    text, other = build_tower(randomise), IDS.clone()
    other[0, 3], other[2, 2:] = 7, torch.tensor([END, 4])
    assert_close(text(other), text(IDS))
    other[0, 1] = 6
    assert (text(other) - text(IDS))[0].abs().min() > 1e-6


def test_last_pool_uses_padding_and_both_directions(randomise):
    text = build_tower(randomise, causal=False, pool=Last)
    ids = pad(IDS, (0, 3))
    other = ids.clone()
    other[0, 4] = 7  # padding, which this model attends to
    assert (text(other) - text(ids))[0].abs().min() > 1e-6
    assert torch.equal(text.features(ids)[:, -1] @ text.head.weight.T + text.head.bias, text(ids))


def test_unpadded_text_is_rejected_by_last_pool(randomise):
    with pytest.raises(ValueError, match="ids must be padded to context=7, got 4 in a row"):
        build_tower(randomise, causal=False, pool=Last)(IDS)


class Middle(TextPool):
    """A user's pool that needs texts padded to the context."""

    whole = True

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return x[:, x.shape[1] // 2]


def test_whole_is_taken_from_the_pool(randomise):
    assert not build_tower(randomise).whole
    text = build_tower(randomise, causal=False, pool=Middle)
    assert text.whole and text(pad(IDS, (0, 3))).shape == (3, 6)
    with pytest.raises(ValueError, match="ids must be padded to context=7, got 4 in a row"):
        text(IDS)


def test_text_longer_than_context_is_rejected(randomise):
    with pytest.raises(ValueError, match="ids must be at most context=7 long, got 8; cut the text"):
        build_tower(randomise)(pad(IDS, (0, 4)))


def test_end_of_text_pool_needs_causal_encoder(randomise):
    with pytest.raises(ValueError, match="encoder must be causal for EndOfText"):
        build_tower(randomise, causal=False)


def test_tower_without_head_returns_pooled_token(randomise):
    text = TextTower(Encoder(16, 1, 2, causal=True), 12, 7, 0, pool=partial(EndOfText, end=END))
    assert text.outputs == 16
    assert torch.equal(text(IDS), text.features(IDS)[torch.arange(3), torch.tensor([2, 3, 1])])


SCHEMES = {
    "learned": ({}, {}),
    "sinusoidal": ({"table": Sinusoidal}, {}),
    "rotary": ({"table": NoPositions}, {"position": Rotary}),
    "alibi": ({"table": NoPositions}, {"position": ALiBi}),
}


def build_decoder(randomise: Callable[[nn.Module], nn.Module], scheme: str = "learned", **options: Any) -> TextDecoder:
    slots, variants = SCHEMES[scheme]
    decoder = randomise(TextDecoder(Encoder(16, 2, 2, causal=True, **variants), 12, 10, **slots, **options))
    assert isinstance(decoder, TextDecoder)
    return decoder


@pytest.mark.parametrize("scheme", SCHEMES)
def test_padding_in_front_of_a_prompt_changes_nothing(randomise, scheme):
    decoder, ids = build_decoder(randomise, scheme), torch.randint(12, (3, 6))
    valid = torch.tensor([[False] * 4 + [True] * 2, [True] * 6, [False] * 6])  # the last one is all padding
    prompt = decoder.prompt(ids, valid)
    logits = decoder.logits(decoder.features(prompt.x, prompt.positions, mask=masks.padding(valid)))
    assert_close(logits[:1, 4:], decoder(ids[:1, 4:]))
    assert_close(logits[1:2], decoder(ids[1:2]))
    assert logits.isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_documents_equal_single_ones(randomise, scheme):
    decoder, first, second = build_decoder(randomise, scheme), torch.randint(12, (1, 4)), torch.randint(12, (1, 6))
    positions = torch.cat([torch.arange(4), torch.arange(6)])[None, :, None]
    numbers = torch.tensor([[0] * 4 + [1] * 6])
    logits = decoder(torch.cat([first, second], 1), positions, mask=masks.documents(numbers, numbers))
    assert_close(logits, torch.cat([decoder(first), decoder(second)], 1))


def test_tied_logits_are_products_with_the_embeddings(randomise):
    ids = torch.randint(12, (2, 5))
    decoder, untied = (build_decoder(randomise, tied=tied, logit_scale=0.5) for tied in (True, False))
    assert {*untied.state_dict()} - {*decoder.state_dict()} == {"head.weight"}
    for model, matrix in ((decoder, decoder.embed.tokens.weight), (untied, untied.get_parameter("head.weight"))):
        features = model.features(*model.embed(ids))
        assert_close(model(ids), features @ matrix.T / 2)


def test_first_loss_is_that_of_uniform_guesses():
    decoder, ids = TextDecoder(Encoder(32, 2, 2, causal=True), 500, 16), torch.randint(500, (8, 16))
    loss = torch.nn.functional.cross_entropy(decoder(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert_close(loss.item(), math.log(500), rtol=0.02, atol=0)


def test_prompt_without_ids_or_padded_behind_is_rejected(randomise):
    decoder = build_decoder(randomise)
    with pytest.raises(ValueError, match=r"ids must hold at least one id to continue, got \(2, 0\)"):
        decoder.prompt(torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match="valid must be False only in front of a text, got padding behind one"):
        decoder.prompt(torch.zeros(1, 3, dtype=torch.long), torch.tensor([[True, True, False]]))
