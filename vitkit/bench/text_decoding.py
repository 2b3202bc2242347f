"""`vitkit bench --decoder`: text generation and training of a GPT-2, beside transformers with the same weights.

B texts, T ids, V vocabulary, D width.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from vitkit.bench.peers import COLUMNS, LEGEND, Row, Settings, Workload, build_optimizer, time_pair
from vitkit.bench.timing import Step
from vitkit.bundle import model_config
from vitkit.bundle.weights import load
from vitkit.convert.hf import gpt2_converter
from vitkit.generation import beam, generate
from vitkit.losses import next_token
from vitkit.models import SIZES, TextDecoder
from vitkit.support.extras import require_package

VOCABULARY, CONTEXT = 8192, 512
PROMPT, NEW, LONG = 16, 64, 256  # ids
BEAMS, BATCHES = 4, (1, 16)
CLIP_VOCABULARY, TARGETS = 49408, 2048
HEADER = f"""
a GPT-2 of {VOCABULARY:,} ids, after a prompt of {PROMPT}; the count is that of the new ids, or of the trained ones
uncached: vitkit without its cache; naive: cross entropy of a matrix of logits, {TARGETS:,} x {CLIP_VOCABULARY:,}
{LEGEND}
{COLUMNS}"""


def compare(size: str, settings: Settings) -> Iterator[Row]:
    require_package("transformers", "bench --decoder", extra="peers")
    ours, peer = (model.to(settings.device, settings.weight_dtype) for model in build_decoders(size))
    if settings.dtype != "bf16-mixed":  # a precision of training
        yield from compare_generation(size, ours.eval(), peer.eval(), settings)
    yield compare_training(size, ours.train(), peer.train(), settings)
    if settings.dtype != "bf16-mixed":
        yield compare_loss(size, settings)


def build_decoders(size: str) -> tuple[TextDecoder, Any]:
    """Return vitkit's model, and that of transformers with the same weights. No id ends a text."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dim, depth, heads, _ = SIZES[size]
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=dim,
        n_layer=depth,
        n_head=heads,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        eos_token_id=None,
        bos_token_id=0,
    )
    peer = GPT2LMHeadModel(config)
    converter = gpt2_converter.CONVERTER
    hf_config = config.to_dict()
    ours = cast(TextDecoder, model_config.build_model(converter.read_config(hf_config)))
    load(ours, converter.to_vitkit(peer.state_dict(), hf_config))
    return ours, peer


def compare_generation(size: str, ours: TextDecoder, peer: Any, settings: Settings) -> Iterator[Row]:
    """Yield rows of greedy generation and beam search. Raises: AssertionError if the greedy ids differ in float32."""
    for batch in BATCHES:
        ids = torch.randint(VOCABULARY, (batch, PROMPT), device=settings.device)
        for beams in (1, BEAMS):
            steps = [partial(write_vitkit, ours, ids, NEW, beams), partial(write_transformers, peer, ids, NEW, beams)]
            if beams == 1 and settings.dtype == "float32":
                assert_close(*(step() for step in steps), rtol=0, atol=0)
            name = f"greedy, batch {batch}" if beams == 1 else f"beam {beams}, batch {batch}"
            yield time_pair(settings, Workload(size, name, batch * NEW, "transformers"), steps)
    for batch, count in ((1, NEW), (16, NEW), (1, LONG)):
        ids = torch.randint(VOCABULARY, (batch, PROMPT), device=settings.device)
        steps = [partial(write_vitkit, ours, ids, count, 1), partial(write_uncached, ours, ids, count)]
        yield time_pair(settings, Workload(size, f"greedy, batch {batch}", batch * count, "uncached"), steps)


def write_vitkit(model: TextDecoder, ids: Tensor, count: int, beams: int) -> Tensor:
    prompt = model.prompt(ids)
    return (generate(model, prompt, count) if beams == 1 else beam(model, prompt, count, beams=beams)).ids


def write_transformers(model: Any, ids: Tensor, count: int, beams: int) -> Tensor:
    options = {"max_new_tokens": count, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, ids.shape[1] :]


@torch.no_grad()
def write_uncached(model: TextDecoder, ids: Tensor, count: int) -> Tensor:
    start = ids.shape[1]
    for _ in range(count):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    return ids[:, start:]


def compare_training(size: str, ours: TextDecoder, peer: Any, settings: Settings) -> Row:
    """Return the row of a training step. Raises: AssertionError if the losses differ in float32."""
    ids = torch.randint(VOCABULARY, (settings.batch, LONG + 1), device=settings.device)

    def compute_loss() -> Tensor:
        total, count = next_token(ours.features(*ours.embed(ids[:, :-1])), ids[:, 1:], ours.logits)
        return total / count

    def compute_peer_loss() -> Tensor:
        return peer(ids, labels=ids).loss

    if settings.dtype == "float32":
        with torch.no_grad():
            assert_close(compute_loss(), compute_peer_loss(), rtol=1e-4, atol=1e-4)
    if settings.compiled:
        ours.encoder.compile()  # `compute_loss` calls no `forward` of the whole
        peer.compile()
    steps = [make_step(model, loss, settings) for model, loss in ((ours, compute_loss), (peer, compute_peer_loss))]
    resident = 3 * settings.weight_dtype.itemsize * sum(parameter.numel() for parameter in ours.parameters())
    workload = Workload(size, f"train, batch {settings.batch}", settings.batch * LONG, "transformers")
    return time_pair(settings, workload, steps, resident=(resident, resident))


def make_step(model: Any, compute_loss: Any, settings: Settings) -> Step:
    optimizer = build_optimizer(model, lr=1e-7)  # so small that the models hardly change

    def step() -> None:
        with settings.autocast():
            loss = compute_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def compare_loss(size: str, settings: Settings) -> Row:
    """Return the row of the loss and its gradients at CLIP's vocabulary, in parts and at once."""
    options = {"device": settings.device, "dtype": settings.weight_dtype}
    features = torch.randn(TARGETS, SIZES[size][0], **options, requires_grad=True)
    weight = torch.randn(CLIP_VOCABULARY, SIZES[size][0], **options, requires_grad=True)
    targets = torch.randint(CLIP_VOCABULARY, (TARGETS,), device=settings.device)

    def compute_in_parts() -> Tensor:
        return next_token(features[None], targets[None], lambda x: F.linear(x, weight))[0]

    def compute_at_once() -> Tensor:
        return F.cross_entropy(F.linear(features, weight).float(), targets, reduction="sum")

    def differentiate(compute: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(compute(), (features, weight))

    steps = [partial(differentiate, compute) for compute in (compute_in_parts, compute_at_once)]
    return time_pair(settings, Workload(size, "loss", TARGETS, "naive"), steps)
