"""Cached decoding equals one pass, also with different positions in each row and with reordered rows."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.nn import (
    ALiBi,
    Attention,
    Cache,
    Encoder,
    Learned,
    NoPositions,
    Position,
    RelativeBias,
    Rotary,
    Sinusoidal,
    TokenEmbed,
    WindowCore,
    masks,
)

RELATIVE = partial(RelativeBias, buckets=8, reach=16, backward_only=True)
SCHEMES = {
    "rotary": (NoPositions, Rotary),
    "alibi": (NoPositions, ALiBi),
    "relative": (NoPositions, RELATIVE),
    "learned": (Learned, Position),
    "sinusoidal and rotary": (Sinusoidal, Rotary),
}
T, V = 10, 11
exact = partial(assert_close, atol=1e-10, rtol=0)


class Decoder(nn.Module):
    """A decoder from ids to features, with a memory and a cache."""

    def __init__(self, scheme: str) -> None:
        super().__init__()
        table, position = SCHEMES[scheme]
        self.embed = TokenEmbed(32, V, T, table=table, scale=2.0)
        self.encoder = Encoder(32, 2, 4, causal=True, memory_dim=24, position=position)

    def forward(self, ids: Tensor, positions: Tensor, memory: Tensor, **context: object) -> Tensor:
        return self.encoder(*self.embed(ids, positions), memory=memory, **context)


def ids(rows: int) -> Tensor:
    return torch.randint(V, (rows, T))


def memory(rows: int) -> Tensor:
    return torch.randn(rows, 3, 24, dtype=torch.float64)


def count_positions(valid: Tensor) -> Tensor:
    """Return positions (B, T, 1) that count only valid tokens."""
    return (valid.cumsum(1) - 1).clamp(min=0)[..., None]


@pytest.mark.parametrize("chunks", [[6, 1, 1, 1, 1], [5, 3, 2]])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_cached_decoding_of_left_padded_texts_equals_unpadded_texts(scheme, chunks, randomise):
    model, prompt, source = randomise(Decoder(scheme)), ids(3), memory(3)
    valid = torch.arange(T) >= torch.tensor([[0], [2], [4]])
    positions, cache = count_positions(valid), Cache(T, valid[:, : chunks[0]])
    parts = [
        model(part, places, source, cache=cache)
        for part, places in zip(prompt.split(chunks, 1), positions.split(chunks, 1), strict=True)
    ]
    whole = model(prompt, positions, source, mask=masks.padding(valid))
    for row in range(3):
        single = model(prompt[row : row + 1, valid[row]], positions[row : row + 1, valid[row]], source[row : row + 1])
        exact(torch.cat(parts, 1)[row : row + 1, valid[row]], single)
        exact(whole[row : row + 1, valid[row]], single)


@pytest.mark.parametrize("chunks", [[T], [4, 1, 3, 1, 1]])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_cached_decoding_of_packed_documents_equals_separate_documents(scheme, chunks, randomise):
    """Rows have documents of different lengths; positions restart at 0 in each document."""
    model, packed, source = randomise(Decoder(scheme)), ids(2), memory(2)
    lengths = [[5, 2, 3], [3, 6, 1]]
    documents = torch.stack([torch.arange(3).repeat_interleave(torch.tensor(row)) for row in lengths])
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])[..., None]
    cache, parts, start = Cache(T), [], 0
    for part in packed.split(chunks, 1):
        end = start + part.shape[1]
        mask = masks.documents(documents[:, start:end], documents[:, :end])
        parts.append(model(part, positions[:, start:end], source, mask=mask, cache=cache))
        start = end
    decoded = torch.cat(parts, 1)
    for row in range(2):
        for document in range(3):
            tokens = documents[row] == document
            places = torch.arange(int(tokens.sum()))[None, :, None]
            exact(decoded[row : row + 1, tokens], model(packed[row : row + 1, tokens], places, source[row : row + 1]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cached_decoding_of_reordered_beams_equals_one_pass(scheme, randomise):
    """Two sentences with different prompts and memories get three beams each, reordered within their sentence. Then one
    sentence is dropped, and the beams of the other are reordered again."""
    model, source = randomise(Decoder(scheme)), memory(2)
    valid = torch.tensor([[True] * 4, [False, False, True, True]])
    text, cache = ids(2)[:, :4], Cache(T, valid)
    positions = count_positions(valid)
    model(text, positions, source, cache=cache)

    def step(text: Tensor, positions: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        text = torch.cat([text, torch.randint(V, (len(text), 1))], 1)
        positions = torch.cat([positions, positions[:, -1:] + 1], 1)
        decoded = model(text[:, -1:], positions[:, -1:], source, cache=cache)
        whole = torch.cat([valid, valid.new_ones(len(valid), text.shape[1] - 4)], 1)
        exact(decoded, model(text, positions, source, mask=masks.padding(whole))[:, -1:])
        return text, positions

    for rows, moves in (
        (torch.tensor([0, 0, 0, 1, 1, 1]), True),  # a beam becomes three
        (torch.tensor([2, 0, 0, 3, 5, 4]), False),
        (torch.tensor([1, 1, 2, 5, 3, 3]), False),
        (torch.tensor([4, 3, 5, 0, 2, 1]), True),  # the sentences are swapped
        (torch.tensor([2, 0, 1]), True),  # the first sentence is complete
        (torch.tensor([1, 1, 0]), False),
    ):
        cache.select(rows, memory=moves)
        text, positions, valid = text[rows], positions[rows], valid[rows]
        source = source[rows] if moves else source
        text, positions = step(text, positions, source)


@pytest.mark.parametrize("position", [Position, Rotary, ALiBi, RELATIVE])
def test_window_core_with_cache_equals_one_pass_and_window_mask(position, randomise):
    slots = {"causal": True, "position": position}
    encoder = randomise(Encoder(32, 2, 4, attention=partial(Attention, core=partial(WindowCore, size=4)), **slots))
    plain = Encoder(32, 2, 4, **slots).double().eval()
    plain.load_state_dict(encoder.state_dict())
    x, positions = torch.randn(2, 15, 32).double(), torch.arange(15)[None, :, None]
    chunks, cache = [5, 1, 1, 3, 1, 4], Cache(15)
    parts = [
        encoder(part, places, cache=cache)
        for part, places in zip(x.split(chunks, 1), positions.split(chunks, 1), strict=True)
    ]
    whole = encoder(x, positions)
    exact(torch.cat(parts, 1), whole)
    exact(whole, plain(x, positions, mask=masks.window(positions, positions, 3)))
    assert not torch.allclose(whole, plain(x, positions))
