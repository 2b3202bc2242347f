"""Continue texts by a TextDecoder and its tokenizer: prompts in, texts out. B prompts, n new ids."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitkit.bundle.bundle import Bundle, get_tokenizer
from vitkit.convert.open import open_text_decoder
from vitkit.data.tokenizer import Tokenizer
from vitkit.data.vocabularies.vocabulary import Vocabulary
from vitkit.generation import Edit, Generated, Sampler, beam, generate, greedy, stream
from vitkit.models import Prompt
from vitkit.models.parts import require_text_decoder
from vitkit.support.devices import get_device

STEPS = 100  # new ids by default, where the context has room for them


class Completion(NamedTuple):
    """A continuation of a prompt.

    Args:
        text: without the prompt, and without the string that it stops at.
        ids: the new ids with the end.
        log_probs: of each of them in the model's distribution.
        score: their sum; in beam search divided by length^alpha.
    """

    text: str
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float


def complete(
    model: str | Path | Bundle,
    prompts: str | Sequence[str],
    steps: int | None = None,
    *,
    sample: Sampler = greedy,
    edits: Sequence[Edit] = (),
    stop: Sequence[str] = (),
    samples: int = 1,
    beams: int = 1,
    alpha: float = 1.0,
    device: str = "auto",
) -> list[list[Completion]]:
    """Continue prompts until the end of the text, and return the completions of each.

    Args:
        steps: the most new ids; by default 100, or as many as the context has room for.
        sample: greedy, or such as `vitkit.Sampling(0.8, top_k=40)`.
        edits: changes of the logits, such as `vitkit.generation.RepetitionPenalty(1.2)`.
        stop: strings at which a text ends too.
        samples: the number of completions of each prompt.
        beams: above 1, the best text that beam search finds, by log-probability / length^alpha; without the options
            above but `steps`.

    Raises: ValueError for a model of another kind, and for prompts that do not fit into its context.
    """
    if beams > 1 and (sample is not greedy or edits or stop or samples > 1):
        raise ValueError(f"beams must be 1 with sample, edits, stop or samples, got beams={beams}")
    bundle = open_text_decoder(model)
    decoder, tokenizer = require_text_decoder(bundle.model).to(get_device(device)), get_tokenizer(bundle)
    rows = encode_prompts(bundle, [prompts] if isinstance(prompts, str) else prompts, steps)
    prompt, steps, end = embed_prompts(bundle, rows), choose_steps(bundle, rows, steps), tokenizer.vocabulary.end
    if beams > 1:
        generated = beam(decoder, prompt, steps, beams=beams, alpha=alpha, stop=[end])
    else:
        finished = StopStrings(tokenizer.vocabulary, stop) if stop else None
        options: dict[str, Any] = {"sample": sample, "edits": edits, "finished": finished, "samples": samples}
        generated = generate(decoder, prompt, steps, stop=[end], **options)
    repeated = [row for row in rows for _ in range(samples)]
    completions = make_completions(tokenizer, repeated, generated, stop)
    return [completions[start : start + samples] for start in range(0, len(completions), samples)]


def stream_completion(
    model: str | Path | Bundle,
    prompt: str,
    steps: int | None = None,
    *,
    sample: Sampler = greedy,
    stop: Sequence[str] = (),
    device: str = "auto",
) -> Iterator[str]:
    """Yield the text of one completion in pieces as they are written. Args and Raises: as for `complete`."""
    bundle = open_text_decoder(model)
    decoder, tokenizer = require_text_decoder(bundle.model).to(get_device(device)), get_tokenizer(bundle)
    rows = encode_prompts(bundle, [prompt], steps)
    embedded, steps = embed_prompts(bundle, rows), choose_steps(bundle, rows, steps)
    new = stream(decoder, embedded, steps, sample=sample, stop=[tokenizer.vocabulary.end])
    yield from cut_pieces(decode_behind(tokenizer, rows[0], (int(step.ids) for step in new)), stop)


def encode_prompts(bundle: Bundle, texts: Sequence[str], steps: int | None) -> list[list[int]]:
    """Return the ids of prompts. They begin as the tokenizer's texts do; an empty prompt with the end of another text.

    Raises: ValueError for prompts that leave no room for `steps` new ids, or for one.
    """
    if not texts:
        raise ValueError("prompts must hold at least one text, got none")
    vocabulary, context = get_tokenizer(bundle).vocabulary, require_text_decoder(bundle.model).embed.context
    rows = [[*vocabulary.begin, *ids] or [vocabulary.end] for ids in get_tokenizer(bundle).encode(texts)]
    for text, row in zip(texts, rows, strict=True):
        if len(row) + (steps or 1) > context:
            given, fewer = ("", "") if steps is None else (f" and steps={steps}", ", or take fewer steps")
            raise ValueError(
                f"a prompt and its new ids must fit into the model's context of {context}, got {len(row)} ids of "
                f"{text[:80]!r}{given}; shorten the prompt to at most {max(0, context - (steps or 1))} ids{fewer}"
            )
    return rows


def choose_steps(bundle: Bundle, rows: Sequence[Sequence[int]], steps: int | None) -> int:
    """Return the number of steps: by default 100, or as many as the context has room for."""
    room = require_text_decoder(bundle.model).embed.context - max(map(len, rows))
    return min(STEPS, room) if steps is None else steps


def embed_prompts(bundle: Bundle, rows: Sequence[Sequence[int]]) -> Prompt:
    """Embed prompts, padded in front."""
    decoder, pad, longest = (
        require_text_decoder(bundle.model),
        get_tokenizer(bundle).vocabulary.pad,
        max(map(len, rows)),
    )
    device = decoder.embed.tokens.weight.device
    ids = torch.tensor([[pad] * (longest - len(row)) + [*row] for row in rows], device=device)
    lengths = torch.tensor([*map(len, rows)], device=device)
    with torch.no_grad():
        return decoder.prompt(ids, torch.arange(longest, device=device) >= longest - lengths[:, None])


def make_completions(
    tokenizer: Tokenizer, rows: Sequence[Sequence[int]], generated: Generated, stop: Sequence[str]
) -> list[Completion]:
    completions = []
    for row, *columns in zip(rows, *(column.tolist() for column in generated), strict=True):
        ids, log_probs, length, score = columns
        text = "".join(cut_pieces(decode_behind(tokenizer, row, ids[:length]), stop))
        completions.append(Completion(text, tuple(ids[:length]), tuple(log_probs[:length]), score))
    return completions


def decode_behind(tokenizer: Tokenizer, prompt: Sequence[int], new: Iterable[int]) -> Iterator[str]:
    """Yield the text of new ids in pieces. It may begin with the space that belongs behind the prompt."""
    left = len(tokenizer.decode(prompt))
    for piece in tokenizer.decode_pieces(chain(prompt, new)):
        if behind := piece[left:]:
            yield behind
        left = max(0, left - len(piece))


class StopStrings:
    """Decides which texts have ended: those that hold one of the strings. It is called once for each step."""

    def __init__(self, vocabulary: Vocabulary, strings: Sequence[str]) -> None:
        if "" in strings:
            raise ValueError("stop must hold strings of at least one character, got an empty one")
        self.spell, self.strings = vocabulary.spell, [string.encode() for string in strings]
        self.texts: list[bytes] = []

    def __call__(self, new: Tensor) -> Tensor:
        self.texts = self.texts or [b""] * len(new)
        last = [b"" if number < 0 else self.spell(number) for number in new[:, -1].tolist()]
        self.texts = [text + piece for text, piece in zip(self.texts, last, strict=True)]
        ended = [any(string in text for string in self.strings) for text in self.texts]
        return torch.tensor(ended, device=new.device)


def cut_pieces(pieces: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Yield the text of pieces in front of the first stop string. A possible beginning of one is held back."""
    text, longest = "", max(map(len, stop), default=1) - 1
    for piece in pieces:
        text += piece
        if places := [place for place in map(partial(str.find, text), stop) if place >= 0]:
            yield text[: min(places)]
            return
        if ready := text[: len(text) - longest]:
            text = text[len(ready) :]
            yield ready
    if text:
        yield text
