"""`vitkit bench --contrast`: text encoding and training steps of a CLIP, beside open_clip's with the same weights.

B pictures and captions, T ids.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bench.peers import COLUMNS, LEGEND, Row, Settings, Workload, build_optimizer, time_pair
from vitkit.bench.timing import Step
from vitkit.bundle import model_config
from vitkit.bundle.weights import load
from vitkit.convert.openclip import two_towers
from vitkit.data.annotations.captions import CAPTIONS
from vitkit.data.sources.open import open_source
from vitkit.data.tokenizer import Tokenizer
from vitkit.inference.embeddings import encode_texts, fill_templates
from vitkit.losses import softmax
from vitkit.models import CLIP, SIZES

PIXELS, PATCH, CONTEXT, CHUNK = 224, 32, 77, 256
TEXTS = 16  # number of encoded texts for each picture of a batch
HEADER = f"""
text: encode_texts beside encode_text at {CONTEXT} ids, in batches of {CHUNK}; both include tokenization
train: images of {PIXELS} in patches of {PATCH}, captions, loss, backward, fused AdamW on both sides
the number after the kind of captions is the mean number of their ids
{LEGEND}
{COLUMNS}"""


class Tower(NamedTuple):
    dim: int
    depth: int
    heads: int
    outputs: int


# open_clip's ViT-S-32-alt, ViT-B-32, ViT-L-14; open_clip has none as small as ti
TOWERS = {
    "ti": Tower(192, 6, 3, 192),
    "s": Tower(256, 10, 4, 256),
    "b": Tower(512, 12, 8, 512),
    "l": Tower(768, 12, 12, 768),
}


class VitkitLoss(nn.Module):
    """The loss of a batch. Equal texts are encoded once, and padded to the longest only."""

    def __init__(self, model: CLIP) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
        pair = self.model.make_pair(self.model.encode_image(images), self.model.encode_text(ids)[rows])
        positives = torch.arange(len(rows), device=rows.device)
        with torch.autocast(images.device.type, enabled=False):
            return softmax(pair, pair, positives, positives) / len(rows)


class OpenClipLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        from open_clip.loss import ClipLoss

        self.model, self.loss = model, ClipLoss()

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        return self.loss(*self.model(images, ids)[:3])


def build_clips(size: str) -> tuple[CLIP, Any]:
    """Return vitkit's model, and open_clip's with the same weights."""
    import open_clip

    (dim, depth, heads, ratio), text = SIZES[size], TOWERS[size]
    vision = {"width": dim, "layers": depth, "head_width": dim // heads, "mlp_ratio": ratio}
    config = {
        "embed_dim": text.outputs,
        "vision_cfg": {**vision, "image_size": PIXELS, "patch_size": PATCH},
        "text_cfg": {"width": text.dim, "layers": text.depth, "heads": text.heads, "context_length": CONTEXT},
    }
    peer = open_clip.CLIP(**config)
    ours = cast(CLIP, model_config.build_model(two_towers.read_config(peer.state_dict(), config)))
    load(ours, two_towers.to_vitkit(peer.state_dict(), config))
    return ours, peer


def compare(size: str, settings: Settings) -> Iterator[Row]:
    """Yield rows of text encoding and of training. Raises: ValueError for weights in bfloat16."""
    if settings.weight_dtype != torch.float32:
        raise ValueError(
            f"dtype must leave the scale of the logits in float32 for contrast, got dtype={settings.dtype}; "
            "take float32 or bf16-mixed"
        )
    ours, peer = (model.to(settings.device) for model in build_clips(size))
    names = list_emoji_names()
    for kind, texts in (("names", names), ("prompts", list_imagenet_prompts())):
        sample = random.Random(0).sample(texts, min(TEXTS * settings.batch, len(texts)))
        steps = [add_autocast(step, settings) for step in make_encoding_steps(ours.eval(), peer.eval(), sample)]
        if settings.dtype == "float32":
            assert_close(*(step() for step in steps), rtol=0, atol=1e-5)
        yield time_pair(settings, make_workload(size, f"text {kind}", sample), steps)
    for kind, texts in (("names", names), ("sentences", make_sentences(names))):
        sample = random.Random(0).sample(sorted(set(texts)), settings.batch)
        images = torch.randn(settings.batch, 3, PIXELS, PIXELS, device=settings.device)
        steps = make_training_steps(ours.train(), peer.train(), images, sample, settings)
        # In use before a step: each weight and AdamW's two moments. Gradients are freed within the step.
        resident = 3 * 4 * sum(parameter.numel() for parameter in ours.parameters())
        yield time_pair(settings, make_workload(size, f"train {kind}", sample), steps, resident=(resident, resident))


def make_workload(size: str, step: str, texts: Sequence[str]) -> Workload:
    lengths = [len(row) for row in Tokenizer(CONTEXT).encode_and_cut(texts)[0]]
    return Workload(f"{size}/{PATCH}", f"{step} {sum(lengths) / len(lengths):.1f}", len(texts), "open_clip")


def make_encoding_steps(ours: CLIP, peer: Any, texts: Sequence[str]) -> tuple[Step, Step]:
    from open_clip import tokenize

    device, tokenizer = ours.log_scale.device, Tokenizer(CONTEXT)

    @torch.no_grad()
    def encode_peer() -> Tensor:
        parts = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
        return torch.cat([peer.encode_text(tokenize(list(part)).to(device), normalize=True) for part in parts])

    return lambda: encode_texts(ours, tokenizer, texts, batch=CHUNK), encode_peer


def make_training_steps(
    ours: CLIP, peer: nn.Module, images: Tensor, texts: Sequence[str], settings: Settings
) -> list[Step]:
    """Return the training steps of both models. Raises: AssertionError if their losses differ."""
    from open_clip import tokenize

    rows = torch.arange(len(texts), device=images.device)
    losses = (
        (VitkitLoss(ours), (images, Tokenizer(CONTEXT)(texts).to(images.device), rows)),
        (OpenClipLoss(peer), (images, tokenize(list(texts)).to(images.device))),
    )
    with torch.no_grad():
        assert_close(*(loss(*inputs) for loss, inputs in losses), rtol=1e-4, atol=1e-4)
    return [make_loss_step(loss, inputs, settings) for loss, inputs in losses]


def make_loss_step(model: nn.Module, inputs: Sequence[Tensor], settings: Settings) -> Step:
    optimizer = build_optimizer(model, lr=1e-7)  # so small that the models hardly change
    if settings.compiled:
        model.compile()

    def step() -> None:
        with settings.autocast():
            loss = model(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def add_autocast(step: Step, settings: Settings) -> Step:
    def autocast_step() -> object:
        with settings.autocast():
            return step()

    return autocast_step


def list_emoji_names() -> list[str]:
    """Return the names of OpenMoji's pictures, which are their first captions."""
    return [captions[0] for captions in open_source("openmoji", CAPTIONS).captions]


def make_sentences(names: Sequence[str]) -> list[str]:
    """Return as many sentences as names, each of two names drawn with a fixed seed."""
    generator = random.Random(0)
    return [f"a {generator.choice(names)} to the left of a {generator.choice(names)}" for _ in names]


def list_imagenet_prompts() -> list[str]:
    """Return the 80,000 prompts of CLIP for ImageNet."""
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES

    return fill_templates(IMAGENET_CLASSNAMES, [template("{}") for template in OPENAI_IMAGENET_TEMPLATES])
