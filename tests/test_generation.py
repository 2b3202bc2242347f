from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitkit.generation import NoRepeat, RepetitionPenalty, Sampling, beam, generate, greedy, stream
from vitkit.models import Prompt, TextDecoder
from vitkit.nn import ALiBi, Encoder, NoPositions, Rotary, Sinusoidal, masks

V, CONTEXT, STEPS, END = 23, 20, 8, 3
SCHEMES = {
    "learned": ({}, {}),
    "sinusoidal": ({"table": Sinusoidal}, {}),
    "rotary": ({"table": NoPositions}, {"position": Rotary}),
    "alibi": ({"table": NoPositions}, {"position": ALiBi}),
}
SAMPLERS: dict[str, Callable[[], Any]] = {
    "greedy": lambda: greedy,
    "temperature": lambda: Sampling(0.7, generator=torch.Generator().manual_seed(5)),
    "top_k": lambda: Sampling(1.3, top_k=4, generator=torch.Generator().manual_seed(5)),
    "top_p": lambda: Sampling(top_p=0.8, generator=torch.Generator().manual_seed(5)),
    "min_p": lambda: Sampling(min_p=0.2, generator=torch.Generator().manual_seed(5)),
}
VALID = torch.tensor([[False] * 3 + [True] * 3, [True] * 6, [False] * 5 + [True]])


def build_decoder(scheme: str = "learned", **options: Any) -> TextDecoder:
    """Return a decoder with random parameters in float64."""
    slots, variants = SCHEMES[scheme]
    decoder = TextDecoder(
        Encoder(16, 2, 2, causal=True, **variants, **options), V, CONTEXT, tied=False, **slots
    ).double()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return decoder.eval()


def draw_prompts() -> Tensor:
    return torch.randint(V, VALID.shape)


@torch.no_grad()
def generate_without_cache(decoder: TextDecoder, ids: Tensor, valid: Tensor, sample: Any) -> Tensor:
    start = ids.shape[1]
    for _ in range(STEPS):
        x, positions, *_ = decoder.prompt(ids, valid)
        features = decoder.features(x, positions, mask=masks.padding(valid))
        ids = torch.cat([ids, sample(decoder.logits(features[:, -1]))[:, None]], 1)
        valid = torch.nn.functional.pad(valid, (0, 1), value=True)
    return ids[:, start:]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_cached_ids_equal_uncached_ones(sampler: str, scheme: str) -> None:
    decoder, ids = build_decoder(scheme), draw_prompts()
    generated = generate(decoder, decoder.prompt(ids, VALID), STEPS, sample=SAMPLERS[sampler]())
    assert torch.equal(generated.ids, generate_without_cache(decoder, ids, VALID, SAMPLERS[sampler]()))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("search", [generate, beam])
def test_unequal_prompts_in_a_batch_equal_single_ones(search: Any, scheme: str) -> None:
    decoder, ids = build_decoder(scheme), draw_prompts()
    valid = torch.cat([VALID, torch.zeros(1, 6, dtype=torch.bool)])  # the last prompt is all padding
    stop = search(decoder, decoder.prompt(ids, VALID), STEPS).ids[1, 3:5].tolist()
    batch = search(decoder, decoder.prompt(torch.cat([ids, ids[:1]]), valid), STEPS, stop=stop)
    assert batch.lengths.min() < STEPS
    for row, (prompt, shown) in enumerate(zip(ids, VALID, strict=True)):
        alone = search(decoder, decoder.prompt(prompt[None, shown]), STEPS, stop=stop)
        length = int(alone.lengths)
        assert batch.lengths[row] == length
        assert torch.equal(batch.ids[row, :length], alone.ids[0])
        assert (batch.ids[row, length:] == -1).all() and not batch.log_probs[row, length:].any()
        assert_close(batch.log_probs[row, :length], alone.log_probs[0])
        assert_close(batch.scores[row], alone.scores[0])


def test_log_probabilities_are_those_of_the_model() -> None:
    """Whatever the sampler and the edits are."""
    decoder, ids = build_decoder(), draw_prompts()
    for generated in (
        generate(decoder, decoder.prompt(ids), STEPS, sample=Sampling(0.5, top_k=3), edits=[RepetitionPenalty(1.5)]),
        beam(decoder, decoder.prompt(ids), STEPS, alpha=0.0),
    ):
        logits = decoder(torch.cat([ids, generated.ids], 1))[:, 5:-1]
        expected = logits.log_softmax(-1).gather(-1, generated.ids[..., None])[..., 0]
        assert_close(generated.log_probs, expected)
        assert_close(generated.scores, expected.sum(1))


def test_stream_yields_the_ids_of_generate_one_by_one() -> None:
    decoder, ids = build_decoder(), draw_prompts()
    prompt = decoder.prompt(ids, VALID)
    whole = generate(decoder, prompt, STEPS, stop=[END, 7])
    steps = [*stream(decoder, prompt, STEPS, stop=[END, 7])]
    assert torch.equal(torch.stack([step.ids for step in steps], 1), whole.ids)
    assert torch.equal(torch.stack([step.log_probs for step in steps], 1), whole.log_probs)


def count_passes(decoder: TextDecoder, continue_prompts: Callable[[], object]) -> int:
    passes = []
    hook = decoder.encoder.register_forward_hook(lambda *_: passes.append(1))
    continue_prompts()
    hook.remove()
    return len(passes)


def test_no_pass_follows_the_end_of_all_texts() -> None:
    decoder, ids = build_decoder(), draw_prompts()
    prompt = decoder.prompt(ids)
    whole = generate(decoder, prompt, STEPS)
    assert count_passes(decoder, lambda: generate(decoder, prompt, STEPS)) == STEPS  # the last id is not encoded
    stop = whole.ids[:, :3].flatten().tolist()
    last = int(generate(decoder, prompt, STEPS, stop=stop[2:3]).lengths.max())
    assert count_passes(decoder, lambda: generate(decoder, prompt, STEPS, stop=range(V))) == 1
    assert count_passes(decoder, lambda: generate(decoder, prompt, STEPS, stop=stop[2:3])) == last
    assert count_passes(decoder, lambda: beam(decoder, prompt, STEPS, stop=range(V))) == 1


def test_text_ends_where_finished_says() -> None:
    """As for strings: the callable sees the new ids alone."""
    decoder, ids = build_decoder(), draw_prompts()
    prompt = decoder.prompt(ids)
    whole = generate(decoder, prompt, STEPS)
    pair = whole.ids[1, 2:4]  # a text ends behind these two ids

    def finished(new: Tensor) -> Tensor:
        return (new[:, -2:] == pair).all(-1) if new.shape[1] >= 2 else torch.zeros(len(new), dtype=torch.bool)

    ended = generate(decoder, prompt, STEPS, finished=finished)
    for new, row, length in zip(ended.ids, whole.ids, ended.lengths.tolist(), strict=True):
        assert torch.equal(new[:length], row[:length]) and (new[length:] == -1).all()
    assert ended.lengths[1] <= 4


def test_samples_of_a_prompt_equal_repeated_prompts() -> None:
    memory = torch.randn(3, 4, 16, dtype=torch.float64)
    decoder, ids = build_decoder(memory_dim=16), draw_prompts()
    options: Any = {"edits": [RepetitionPenalty(1.3)], "stop": [END]}
    prompt = decoder.prompt(ids, VALID, memory=memory, memory_mask=masks.padding(VALID[:, 2:]))
    several = generate(decoder, prompt, STEPS, sample=SAMPLERS["top_k"](), samples=4, **options)
    repeated: list[Any] = [value if value is None else value.repeat_interleave(4, 0) for value in prompt]
    expected = generate(decoder, Prompt(*repeated), STEPS, sample=SAMPLERS["top_k"](), **options)
    assert torch.equal(several.ids, expected.ids) and several.ids.shape == (12, STEPS)
    assert len({*map(tuple, several.ids.tolist())}) > 6


def test_one_beam_is_greedy_and_more_beams_find_no_worse_texts() -> None:
    decoder, ids = build_decoder(), draw_prompts()
    prompt = decoder.prompt(ids, VALID)
    single = beam(decoder, prompt, STEPS, beams=1, alpha=0.0, stop=[END])
    whole = generate(decoder, prompt, STEPS, stop=[END])
    assert torch.equal(single.ids, whole.ids)
    assert_close(single.scores, whole.scores)
    wide = [beam(decoder, prompt, 2, beams=beams, alpha=0.0).scores for beams in (1, V)]
    assert (wide[0] <= wide[1] + 1e-9).all()
    logits = decoder(torch.cat([ids[1:2].expand(V, -1), torch.arange(V)[:, None]], 1))[:, 5:].log_softmax(-1)
    best = (logits[0, 0, :, None] + logits[:, 1]).max()  # of all texts of two ids
    assert_close(wide[1][1], best)


def test_search_goes_on_while_a_longer_text_can_be_better() -> None:
    decoder, ids = build_decoder(), draw_prompts()[:1]
    first = generate(decoder, decoder.prompt(ids), 1)
    longer = beam(decoder, decoder.prompt(ids), STEPS, beams=1, alpha=2.0, stop=first.ids[0].tolist())
    assert longer.lengths > 1 and longer.scores > first.scores


@pytest.mark.parametrize("continue_prompts", [generate, beam, lambda *args: [*stream(*args)]])
def test_text_beyond_the_context_is_rejected(continue_prompts: Any) -> None:
    decoder, ids = build_decoder(), draw_prompts()
    message = "must fit into context=20, got a prompt of 6 tokens and steps=15; cut the beginning of the prompt"
    with pytest.raises(ValueError, match=message):
        continue_prompts(decoder, decoder.prompt(ids, VALID), 15)
    continue_prompts(decoder, decoder.prompt(ids, VALID), 14)
    with pytest.raises(ValueError, match="steps must be at least 1, got steps=0"):
        continue_prompts(decoder, decoder.prompt(ids), 0)


LOGITS = torch.tensor([0.0, 1.5, -0.5, 2.0, 1.9, -torch.inf, 0.7], dtype=torch.float64)


def truncate(p: Tensor, kept: list[int]) -> Tensor:
    q = torch.zeros_like(p)
    q[kept] = p[kept]
    return q / q.sum()


def divide(temperature: float) -> Tensor:
    return (LOGITS / temperature).softmax(0)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (Sampling(), divide(1)),
        (Sampling(0.6), divide(0.6)),
        (Sampling(2.5), divide(2.5)),
        (Sampling(1.4, top_k=3), truncate(divide(1.4), [1, 3, 4])),
        (Sampling(top_p=0.7), truncate(divide(1), [1, 3, 4])),  # 0.34 + 0.31 < 0.7
        (Sampling(top_p=0.6), truncate(divide(1), [3, 4])),
        (Sampling(top_k=4, top_p=0.74), truncate(divide(1), [1, 3, 4])),  # shares are of the four
        (Sampling(2.0, min_p=0.5), truncate(divide(2.0), [1, 3, 4, 6])),
        (Sampling(min_p=0.5), truncate(divide(1), [1, 3, 4])),
    ],
)
def test_samples_follow_the_exact_distribution(sample: Sampling, expected: Tensor) -> None:
    draws, generator = 100_000, torch.Generator().manual_seed(0)
    sample.generator = generator
    counts = sample(LOGITS.expand(draws, -1)).bincount(minlength=len(LOGITS))
    possible = expected > 0
    assert not counts[~possible].any()
    deviation = ((counts - draws * expected)[possible] ** 2 / (draws * expected)[possible]).sum()
    assert deviation < 25  # chi-square of at most 5 degrees of freedom: p = 1e-4


def test_limits_without_a_choice_are_greedy() -> None:
    logits = torch.randn(50, V)
    for sample in (Sampling(0.0), Sampling(1e-40), Sampling(top_k=1), Sampling(top_p=0.0), Sampling(min_p=1.0)):
        assert torch.equal(sample(logits), greedy(logits))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 1.1}, "top_p and min_p must be from 0 to 1"),
        ({"min_p": -0.1}, "top_p and min_p must be from 0 to 1"),
    ],
)
def test_limit_out_of_range_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.8])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    past, logits = torch.randint(V, (4, 9)), torch.randn(4, V)
    theirs = logits_process.RepetitionPenaltyLogitsProcessor(penalty)(past, logits.clone())
    assert torch.equal(RepetitionPenalty(penalty)(past, logits), theirs)
    padded = torch.cat([torch.full((4, 2), -1), past], 1)
    assert torch.equal(RepetitionPenalty(penalty)(padded, logits), theirs)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_excluded_repetitions_equal_transformers(size: int) -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    for length in (1, 2, 3, 12):
        past, logits = torch.randint(3, (16, length)), torch.randn(16, 5)
        theirs = logits_process.NoRepeatNGramLogitsProcessor(size)(past, logits.clone())
        assert torch.equal(NoRepeat(size)(past, logits), theirs)
        padded = torch.cat([torch.full((16, 4), -1), past], 1)
        assert torch.equal(NoRepeat(size)(padded, logits), theirs)


def test_image_between_ids_is_no_repetition() -> None:
    past, logits = torch.tensor([[-1, 4, 2, -1]]), torch.randn(1, 5)
    assert torch.equal(NoRepeat(2)(past, logits), logits)


def test_edits_see_the_ids_of_prompt_and_continuation() -> None:
    decoder, ids = build_decoder(), draw_prompts()
    seen: list[Tensor] = []

    def record(past: Tensor, logits: Tensor) -> Tensor:
        seen.append(past.clone())
        return logits

    new = generate(decoder, decoder.prompt(ids, VALID), 3, edits=[record]).ids
    shown = ids.masked_fill(~VALID, -1)
    assert [past.shape[1] for past in seen] == [6, 7, 8]
    assert torch.equal(seen[2], torch.cat([shown, new[:, :2]], 1))
    text = torch.cat([ids[1:2], generate(decoder, decoder.prompt(ids[1:2]), 14, edits=[NoRepeat(2)]).ids], 1)[0]
    pairs = [*zip(text[5:].tolist(), text[6:].tolist(), strict=False)]
    assert len({*pairs}) == len(pairs)


@pytest.fixture(scope="module")
def gpt2() -> Any:
    """A GPT-2 of transformers with random parameters, and the same as a TextDecoder."""
    transformers = pytest.importorskip("transformers")
    from vitkit.bundle import model_config, weights
    from vitkit.convert.hf.gpt2_converter import CONVERTER

    torch.manual_seed(0)
    sizes = {"vocab_size": V, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    hf_config = {**theirs.config.to_dict(), "architectures": ["GPT2LMHeadModel"]}
    ours = model_config.build_model(CONVERTER.read_config(hf_config)).double().eval()
    weights.load(ours, CONVERTER.to_vitkit(theirs.state_dict(), hf_config))
    return theirs, ours


@pytest.mark.parametrize("ends", [1, 3])
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore")
def test_texts_and_scores_equal_transformers(seed: int, beams: int, ends: int, gpt2: Any) -> None:
    """The padding has the id of an end, and texts end at different steps."""
    theirs, ours = gpt2
    torch.manual_seed(seed)
    ids = draw_prompts()
    stop = generate(ours, ours.prompt(ids, VALID), 12).ids[[0, 1, 2], [2, 5, 0]][:ends].tolist()
    ids = ids.masked_fill(~VALID, stop[0])
    options: dict[str, Any] = {"attention_mask": VALID.long(), "do_sample": False, "max_new_tokens": 12}
    options |= {"eos_token_id": [*stop], "pad_token_id": stop[0], "return_dict_in_generate": True}
    for alpha in (0.0, 1.0, 2.0) if beams > 1 else (0.0,):
        search = {"num_beams": beams, "length_penalty": alpha, "early_stopping": "never"} if beams > 1 else {}
        expected = theirs.generate(ids, **options, **search, output_scores=True)
        prompt = ours.prompt(ids, VALID)
        if beams == 1:
            result = generate(ours, prompt, 12, stop=stop)
        else:
            result = beam(ours, prompt, 12, beams=beams, alpha=alpha, stop=stop)
            assert_close(result.scores, expected.sequences_scores.double(), rtol=0, atol=1e-5)
        assert torch.equal(torch.where(result.ids < 0, stop[0], result.ids), expected.sequences[:, 6:])
