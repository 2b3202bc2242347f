"""Continue texts: greedily, by sampling, or by beam search, with the keys of earlier tokens cached.

Every family that writes text makes a `Prompt` for its TextDecoder; nothing else here depends on the family.
B texts, T tokens of the prompt, n ids so far, N new ids, V vocabulary.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitkit.models.text import Prompt, TextDecoder
from vitkit.nn import Cache

Sampler = Callable[[Tensor], Tensor]  # logits (B, V) -> ids (B,)
Edit = Callable[[Tensor, Tensor], Tensor]  # ids so far, -1 for padding and images (B, n), and logits -> logits
Finished = Callable[[Tensor], Tensor]  # new ids so far, -1 behind an end (B, n) -> which texts have ended (B,)

NOTHING = -1  # instead of the id of padding, of an image, and of a text that has ended


class Step(NamedTuple):
    """The next id of each text and its log-probability in the model's distribution; -1 and 0 if the text has ended."""

    ids: Int[Tensor, " B"]
    log_probs: Float[Tensor, " B"]


class Generated(NamedTuple):
    """New ids and the log-probability of each, -1 and 0 behind the end of a text.

    Args:
        lengths: the number of new ids, with the end.
        scores: the sum of a text's log-probabilities; in beam search divided by length^alpha.
    """

    ids: Int[Tensor, "B N"]
    log_probs: Float[Tensor, "B N"]
    lengths: Int[Tensor, " B"]
    scores: Float[Tensor, " B"]


def greedy(logits: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    """Return the most probable id."""
    return logits.argmax(-1)


class Sampling:
    """Draw an id: divide the logits by the temperature, keep the ids that all three limits allow, draw among them.

    Args:
        temperature: 0 is greedy.
        top_k: keep the k most probable ids.
        top_p: of these, keep the most probable ones until their probabilities sum to p
            (https://arxiv.org/abs/1904.09751).
        min_p: keep the ids of at least this share of the greatest probability (https://arxiv.org/abs/2407.01082).
        generator: of the device of the logits.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        if temperature < 0:
            raise ValueError(f"temperature must be at least 0, got temperature={temperature}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, got top_k={top_k}; leave it out for no limit")
        if not (0 <= top_p <= 1 and 0 <= min_p <= 1):
            raise ValueError(f"top_p and min_p must be from 0 to 1, got top_p={top_p}, min_p={min_p}")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p
        self.generator = generator

    def __call__(self, logits: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
        if self.temperature == 0:
            return greedy(logits)
        # Differences to the maximum stay finite at any temperature.
        scores, ids = (logits - logits.amax(-1, keepdim=True)) / self.temperature, None
        if self.top_k is not None or self.top_p < 1:
            scores, ids = scores.topk(min(self.top_k or scores.shape[-1], scores.shape[-1]))  # in descending order
        p = scores.softmax(-1)
        kept = p >= self.min_p * p.amax(-1, keepdim=True)
        if self.top_p < 1:
            kept &= p.cumsum(-1) - p < self.top_p
            kept[:, 0] = True  # which top_p=0 would drop
        places = (p * kept).multinomial(1, generator=self.generator)
        return (places if ids is None else ids.gather(-1, places))[:, 0]


class RepetitionPenalty:
    """Divide the positive logits of ids that the text has already by the penalty, and multiply negative ones by it.

    CTRL, https://arxiv.org/abs/1909.05858, section 4.1.
    """

    def __init__(self, penalty: float) -> None:
        if penalty <= 0:
            raise ValueError(f"penalty must be above 0, got penalty={penalty}; 1 changes nothing")
        self.penalty = penalty

    def __call__(self, past: Int[Tensor, "B n"], logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        padded = F.pad(logits, (1, 0))  # the first column is for NOTHING
        scores = padded.gather(1, past + 1)
        scores = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return padded.scatter(1, past + 1, scores)[:, 1:]


class NoRepeat:
    """Exclude ids that would repeat `size` successive ids of the text."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got size={size}")
        self.size = size

    def __call__(self, past: Int[Tensor, "B n"], logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        if past.shape[1] < self.size:
            return logits
        runs = past.unfold(1, self.size, 1)  # (B, n - size + 1, size)
        last = past[:, past.shape[1] - self.size + 1 :]
        repeated = (runs[..., :-1] == last[:, None]).all(-1) & (runs != NOTHING).all(-1)
        excluded = torch.where(repeated, runs[..., -1], NOTHING)
        return F.pad(logits, (1, 0)).scatter(1, excluded + 1, -torch.inf)[:, 1:]


class Decoding:
    """A decoder with its cache, and the logits of the id that follows each text."""

    def __init__(self, decoder: TextDecoder, prompt: Prompt, steps: int) -> None:
        context, length = decoder.embed.context, int(prompt.positions.max()) + 1
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got steps={steps}")
        if length + steps > context:
            raise ValueError(
                f"a prompt and its continuation must fit into context={context}, got a prompt of {length} tokens and "
                f"steps={steps}; cut the beginning of the prompt, or take fewer steps"
            )
        self.decoder, self.cache = decoder, Cache(prompt.x.shape[1] + steps, prompt.valid)
        self.memory, self.memory_mask = prompt.memory, prompt.memory_mask
        self.position = prompt.positions.amax(1, keepdim=True)  # of the last token, (#B, 1, A)
        self.logits = self.compute_logits(prompt.x, prompt.positions, prompt.mask)

    def compute_logits(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Float[Tensor, "B V"]:
        features = self.decoder.features(
            x, positions, mask=mask, memory=self.memory, memory_mask=self.memory_mask, cache=self.cache
        )
        logits = self.decoder.logits(features[:, -1])
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def append(self, ids: Int[Tensor, " B"]) -> None:
        """Append an id to each text."""
        self.position = self.position + 1
        self.logits = self.compute_logits(*self.decoder.embed(ids[:, None], self.position))

    def repeat(self, count: int) -> None:
        """Repeat each text, which copies its keys instead of computing them again."""
        rows = torch.arange(len(self.logits), device=self.logits.device).repeat_interleave(count)
        self.select(rows, memory=True)
        self.logits = self.logits[rows]
        self.memory = None if self.memory is None else self.memory[rows]
        self.memory_mask = None if self.memory_mask is None else self.memory_mask[rows]

    def select(self, rows: Int[Tensor, " rows"], *, memory: bool = False) -> None:
        """Let row i become the former row rows[i], as in `Cache.select`."""
        self.cache.select(rows, memory=memory)
        self.position = self.position if len(self.position) == 1 else self.position[rows]


@torch.no_grad()
def stream(
    decoder: TextDecoder,
    prompt: Prompt,
    steps: int,
    *,
    sample: Sampler = greedy,
    edits: Sequence[Edit] = (),
    stop: Collection[int] = (),
    finished: Finished | None = None,
    samples: int = 1,
) -> Iterator[Step]:
    """Yield the next id of each text, until all have ended or have `steps` new ids.

    Args:
        edits: change the logits before an id is chosen, in this order.
        stop: a text ends with one of these ids.
        finished: decides by the new ids too which texts have ended, as for strings at which to stop.
        samples: the number of continuations of each prompt, in successive rows.

    Raises: ValueError where a prompt and the new ids do not fit into the context.
    """
    decoding = Decoding(decoder, prompt, steps)
    if samples > 1:
        decoding.repeat(samples)
    past = prompt.x.new_empty(len(prompt.x), 0, dtype=torch.long) if prompt.ids is None else prompt.ids
    start, past = past.shape[1], F.pad(past.repeat_interleave(samples, 0), (0, steps), value=NOTHING)
    ends = torch.tensor([*stop], dtype=torch.long, device=past.device)
    ended = past.new_zeros(len(past), dtype=torch.bool)
    for step in range(start, start + steps):
        logits = decoding.logits
        for edit in edits:
            logits = edit(past[:, :step], logits)
        ids = sample(logits)
        log_probs = decoding.logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
        past[:, step] = torch.where(ended, NOTHING, ids)
        yield Step(past[:, step].clone(), torch.where(ended, 0, log_probs))
        ended = ended | torch.isin(ids, ends)
        if finished is not None:
            ended = ended | finished(past[:, start : step + 1])
        if ended.all() or step == start + steps - 1:
            return
        decoding.append(ids)


def generate(
    decoder: TextDecoder,
    prompt: Prompt,
    steps: int,
    *,
    sample: Sampler = greedy,
    edits: Sequence[Edit] = (),
    stop: Collection[int] = (),
    finished: Finished | None = None,
    samples: int = 1,
) -> Generated:
    """Return the whole continuation of each prompt. Args and Raises: as for `stream`."""
    parts = stream(decoder, prompt, steps, sample=sample, edits=edits, stop=stop, finished=finished, samples=samples)
    ids, log_probs = (torch.stack(columns, 1) for columns in zip(*parts, strict=True))
    return Generated(ids, log_probs, (ids != NOTHING).sum(1), log_probs.sum(1))


@torch.no_grad()
def beam(
    decoder: TextDecoder, prompt: Prompt, steps: int, *, beams: int = 4, alpha: float = 1.0, stop: Collection[int] = ()
) -> Generated:
    """Return the best continuation that beam search finds: of the largest log-probability / length^alpha.

    The length counts the new ids with the end. A search ends when no beam can become better than the worst of the
    `beams` finished texts (`early_stopping="never"` in transformers).

    Raises: ValueError where a prompt and the new ids do not fit into the context.
    """
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got beams={beams}")
    decoding, B = Decoding(decoder, prompt, steps), len(prompt.x)
    decoding.repeat(beams)
    device, V = prompt.x.device, decoding.logits.shape[-1]
    ends, row = torch.tensor([*stop], dtype=torch.long, device=device), torch.arange(B, device=device)[:, None]
    live = decoding.logits.new_full((B, beams), -torch.inf)
    live[:, 0] = 0  # all beams are equal at first
    ids = torch.full((B, beams, steps), NOTHING, device=device)
    log_probs = live.new_zeros(B, beams, steps)
    scores, done_ids, done_log_probs = torch.full_like(live, -torch.inf), ids, log_probs
    for n in range(1, steps + 1):
        step_log_probs = decoding.logits.log_softmax(-1).view(B, beams, V)
        # Enough candidates that `beams` of them have not ended.
        count = min((1 + max(len(stop), 1)) * beams, beams * V)
        totals, places = (live[..., None] + step_log_probs).flatten(1).topk(count)
        parents, tokens = places // V, places % V
        ids, log_probs = ids[row, parents], log_probs[row, parents]
        ids[..., n - 1], log_probs[..., n - 1] = tokens, step_log_probs[row, parents, tokens]
        over = torch.isin(tokens, ends) | (n == steps)
        first = torch.arange(count, device=device) < beams
        finished = torch.where(over & first, totals / n**alpha, -torch.inf)
        scores, kept = torch.cat([scores, finished], 1).topk(beams)
        done_ids = torch.cat([done_ids, ids], 1)[row, kept]
        done_log_probs = torch.cat([done_log_probs, log_probs], 1)[row, kept]
        live, kept = totals.masked_fill(over, -torch.inf).topk(beams)
        best = live[:, 0] / (steps if alpha > 0 else n) ** alpha  # that any beam can reach
        if n == steps or (scores[:, -1] >= best).all():
            break
        ids, log_probs = ids[row, kept], log_probs[row, kept]
        decoding.select((row * beams + parents[row, kept]).flatten())
        decoding.append(tokens[row, kept].flatten())
    lengths = (done_ids[:, 0] != NOTHING).sum(1)
    longest = int(lengths.max())
    return Generated(done_ids[:, 0, :longest], done_log_probs[:, 0, :longest], lengths, scores[:, 0])
