"""`vitkit bench --contrast`: a CLIP beside open_clip's with the same weights, in one process: texts, training steps.

B pictures and captions, T ids.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit import configs
from vitkit.commands.timing import Step, alternate, peak
from vitkit.convert import openclip_whole
from vitkit.data.captions import open_captioned
from vitkit.encode import encode_texts, prompts
from vitkit.losses import softmax
from vitkit.models import CLIP, SIZES
from vitkit.tokens import Tokenizer
from vitkit.weights import load

PIXELS, PATCH, CONTEXT, CHUNK = 224, 32, 77, 256
TEXTS = 16  # texts that are encoded for each picture of a batch
HEADER = f"""
texts: encode_texts beside encode_text at {CONTEXT} ids, in batches of {CHUNK}; both read the texts themselves
training: pictures of {PIXELS} in patches of {PATCH}, captions, loss, backward, AdamW; bfloat16 is autocast
speed-up is open_clip's time / vitkit's: median of the pairs (least-greatest); memory is vitkit's peak / open_clip's

model  dtype     step      captions   ids  count  vitkit ms  open_clip ms   speed-up             vitkit MB  theirs MB"""


class Tower(NamedTuple):
    dim: int
    depth: int
    heads: int
    outputs: int


# open_clip's ViT-S-32-alt, ViT-B-32, ViT-L-14; none there is as small as ti
TOWERS = {
    "ti": Tower(192, 6, 3, 192),
    "s": Tower(256, 10, 4, 256),
    "b": Tower(512, 12, 8, 512),
    "l": Tower(768, 12, 12, 768),
}


@dataclass(frozen=True)
class Row:
    """`ids` are the mean of a text, those that begin and end it among them."""

    model: str
    dtype: str
    step: str
    captions: str
    ids: float
    count: int
    seconds: tuple[float, float]
    speedup: tuple[float, float, float]
    memory: tuple[int, int]

    def __str__(self) -> str:
        (own, other), (middle, least, greatest), (mine, theirs) = self.seconds, self.speedup, self.memory
        return (
            f"{self.model:6} {self.dtype:9} {self.step:9} {self.captions:9} {self.ids:4.1f} {self.count:6} "
            f"{own * 1e3:10.1f} {other * 1e3:13.1f}   {middle:5.2f} ({least:.2f}-{greatest:.2f})      "
            f"{mine / 1e6:9,.0f} {theirs / 1e6:10,.0f}"
        )


class Ours(nn.Module):
    """The loss of a batch whose different texts are encoded once, cut at the longest's end."""

    def __init__(self, model: CLIP) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
        pair = self.model.pair(self.model.encode_image(images), self.model.encode_text(ids)[rows])
        concepts = torch.arange(len(rows), device=rows.device)
        with torch.autocast(images.device.type, enabled=False):
            return softmax(pair, pair, concepts, concepts) / len(rows)


class Theirs(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        from open_clip.loss import ClipLoss

        self.model, self.loss = model, ClipLoss()

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        return self.loss(*self.model(images, ids)[:3])


def networks(size: str) -> tuple[CLIP, Any]:
    """vitkit's model, and open_clip's with the same weights."""
    import open_clip

    (dim, depth, heads, ratio), text = SIZES[size], TOWERS[size]
    vision = {"width": dim, "layers": depth, "head_width": dim // heads, "mlp_ratio": ratio}
    told = {
        "embed_dim": text.outputs,
        "vision_cfg": {**vision, "image_size": PIXELS, "patch_size": PATCH},
        "text_cfg": {"width": text.dim, "layers": text.depth, "heads": text.heads, "context_length": CONTEXT},
    }
    peer = open_clip.CLIP(**told)
    ours = cast(CLIP, configs.build(openclip_whole.describe(peer.state_dict(), told)))
    load(ours, openclip_whole.convert(peer.state_dict(), told))
    return ours, peer


def compare(
    size: str, dtype: torch.dtype, device: torch.device, *, batch: int, pairs: int, compiled: bool
) -> Iterator[Row]:
    ours, peer = (model.to(device) for model in networks(size))
    name, names = str(dtype).removeprefix("torch."), emoji()
    mixed = partial(torch.autocast, device.type, dtype, enabled=dtype != torch.float32)
    for kind, texts in (("names", names), ("prompts", imagenet())):
        some = random.Random(0).sample(texts, min(TEXTS * batch, len(texts)))
        steps = [under(mixed, step) for step in encoding(ours.eval(), peer.eval(), some)]
        if dtype == torch.float32:
            assert_close(*(step() for step in steps), rtol=0, atol=1e-5)
        yield timed((f"{size}/{PATCH}", name, "texts", kind), some, steps, pairs, device, held=0)
    for kind, texts in (("names", names), ("sentences", sentences(names))):
        some = random.Random(0).sample(sorted(set(texts)), batch)
        images = torch.randn(batch, 3, PIXELS, PIXELS, device=device)
        steps = training(ours.train(), peer.train(), images, some, mixed, compiled)
        # Held before a step: each weight and AdamW's two numbers for it. Its gradient comes and goes within.
        held = 3 * 4 * sum(parameter.numel() for parameter in ours.parameters())
        yield timed((f"{size}/{PATCH}", name, "training", kind), some, steps, pairs, device, held)


def encoding(ours: CLIP, peer: Any, texts: Sequence[str]) -> tuple[Step, Step]:
    from open_clip import tokenize

    device, tokenizer = ours.log_scale.device, Tokenizer(CONTEXT)

    @torch.no_grad()
    def theirs() -> Tensor:
        parts = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
        return torch.cat([peer.encode_text(tokenize(list(part)).to(device), normalize=True) for part in parts])

    return lambda: encode_texts(ours, tokenizer, texts, batch=CHUNK), theirs


def training(
    ours: CLIP, peer: nn.Module, images: Tensor, texts: Sequence[str], mixed: Any, compiled: bool
) -> list[Step]:
    """Raises: AssertionError where the losses differ."""
    from open_clip import tokenize

    rows = torch.arange(len(texts), device=images.device)
    losses = (
        (Ours(ours), (images, Tokenizer(CONTEXT)(texts).to(images.device), rows)),
        (Theirs(peer), (images, tokenize(list(texts)).to(images.device))),
    )
    with torch.no_grad():
        assert_close(*(loss(*inputs) for loss, inputs in losses), rtol=1e-4, atol=1e-4)
    return [stepping(loss, inputs, mixed, compiled) for loss, inputs in losses]


def stepping(loss: nn.Module, inputs: Sequence[Tensor], mixed: Any, compiled: bool) -> Step:
    optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-7)  # both models stay what they are
    if compiled:
        loss.compile()

    def step() -> None:
        with mixed():
            found = loss(*inputs)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def under(mixed: Any, step: Step) -> Step:
    def stepped() -> object:
        with mixed():
            return step()

    return stepped


def timed(
    what: tuple[str, str, str, str],
    texts: Sequence[str],
    steps: Sequence[Step],
    pairs: int,
    device: torch.device,
    held: int,
) -> Row:
    times = alternate(steps[0], steps[1], pairs, device)
    memory = [held + peak(step, device) for step in steps]
    ratios = [b / a for a, b in zip(*times, strict=True)]
    lengths = [len(row) for row in Tokenizer(CONTEXT).rows(texts)[0]]
    return Row(
        *what,
        sum(lengths) / len(lengths),
        len(texts),
        (median(times[0]), median(times[1])),
        (median(ratios), min(ratios), max(ratios)),
        (memory[0], memory[1]),
    )


def emoji() -> list[str]:
    """The names of OpenMoji's pictures."""
    return [own[0] for own in open_captioned("openmoji").captions]


def sentences(names: Sequence[str]) -> list[str]:
    """As many made of two names each, always the same."""
    draw = random.Random(0)
    return [f"a {draw.choice(names)} to the left of a {draw.choice(names)}" for _ in names]


def imagenet() -> list[str]:
    """All 80,000 prompts of CLIP for ImageNet."""
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES

    return prompts(IMAGENET_CLASSNAMES, [template("{}") for template in OPENAI_IMAGENET_TEMPLATES])
