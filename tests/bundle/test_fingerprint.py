from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.fingerprint import compute_fingerprint, iterate_settings
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, TextTower, ViT
from vitkit.nn import (
    MLP,
    Attention,
    Encoder,
    EndOfText,
    ExplicitCore,
    FusedCore,
    LayerNorm,
    MeasuredCore,
    PreNorm,
    QuickGELU,
    SwiGLU,
    TokenEmbed,
)
from vitkit.retrieval.embedder import Embedder


def build_bundle() -> Bundle:
    torch.manual_seed(0)
    image = ViT(Encoder(16, 1, 2, mlp=SwiGLU), (8, 8), (4, 4), 8)
    model = CLIP(image, TextTower(Encoder(16, 1, 2, causal=True), vocabulary=50, outputs=8))
    return Bundle(model, {}, Preprocess((8, 8), (0.5,) * 3, (0.5,) * 3), tokenizer=Tokenizer())


def test_equal_bundles_have_equal_fingerprints() -> None:
    assert compute_fingerprint(build_bundle()) == compute_fingerprint(build_bundle())
    assert len(compute_fingerprint(build_bundle())) == 32


def test_fingerprint_is_independent_of_training_mode() -> None:
    bundle = build_bundle()
    bundle.model.eval()
    assert compute_fingerprint(bundle) == compute_fingerprint(build_bundle())


@torch.no_grad()
def change_weight(bundle: Bundle) -> Bundle:
    bundle.model.get_parameter("text.head.weight")[0, 0] += 1e-3
    return bundle


def change_activation(bundle: Bundle) -> Bundle:
    cast(MLP, bundle.model.get_submodule("text.encoder.blocks.0.mlp.f")).act = QuickGELU()
    return bundle


def change_gate(bundle: Bundle) -> Bundle:
    cast(SwiGLU, bundle.model.get_submodule("image.encoder.blocks.0.mlp.f")).gate = torch.nn.Identity()
    return bundle


def change_epsilon(bundle: Bundle) -> Bundle:
    cast(torch.nn.LayerNorm, bundle.model.get_submodule("image.encoder.norm")).eps = 1e-5
    return bundle


def change_end(bundle: Bundle) -> Bundle:
    cast(EndOfText, bundle.model.get_submodule("text.pool")).end = 7
    return bundle


def change_size(bundle: Bundle) -> Bundle:
    return bundle._replace(preprocess=replace(bundle.preprocess, size=(8, 12)))


def change_context(bundle: Bundle) -> Bundle:
    return bundle._replace(tokenizer=Tokenizer(76))


CHANGES = [change_weight, change_activation, change_gate, change_epsilon, change_end, change_size, change_context]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_embeddings_change_the_fingerprint(change: Callable[[Bundle], Bundle]) -> None:
    assert compute_fingerprint(change(build_bundle())) != compute_fingerprint(build_bundle())


def test_fingerprint_needs_no_preprocessing_and_no_tokenizer() -> None:
    text = build_bundle()._replace(model=build_bundle().model.get_submodule("text"), preprocess=None)
    bundles = text, text._replace(tokenizer=None), text._replace(tokenizer=Tokenizer(76))
    assert len({*map(compute_fingerprint, bundles)}) == 3


# Classes as a later version might define them, each under the name of a present class.


def pretend(kind: type, path: str = "") -> Callable[[type], type]:
    """Give a class the name of `kind`, which it stands for. Args: path: an existing module to move it to."""

    def rename(stand_in: type) -> type:
        stand_in.__module__, stand_in.__qualname__ = path or kind.__module__, kind.__qualname__
        return stand_in

    return rename


@pretend(TokenEmbed)
class ScaledEmbed(TokenEmbed):
    def __init__(self, *sizes: int, scale: float = 1.0) -> None:
        super().__init__(*sizes)
        self.scale = scale


@pretend(SwiGLU)
class ActSwiGLU(nn.Module):
    def __init__(self, dim: int, *, act: Callable[[], nn.Module] = nn.SiLU) -> None:
        super().__init__()
        hidden = int(dim * 8 / 3)
        self.gate_up, self.act, self.down = nn.Linear(dim, 2 * hidden), act(), nn.Linear(hidden, dim)


@pretend(PreNorm)
class TappedResidual(PreNorm):
    """Args: after: a slot that is None by default and stored under another name."""

    def __init__(self, *parts: Any, after: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(*parts)
        self.tap, self.after_norm = nn.Identity(), nn.Identity() if after is None else after()


@pretend(FusedCore, "vitkit.nn.encoder")
class MovedFused(FusedCore):
    pass


@pretend(ExplicitCore, "vitkit.nn.encoder")
class MovedExplicit(ExplicitCore):
    pass


@pretend(MeasuredCore, "vitkit.nn.encoder")
class MovedCore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused, self.explicit = MovedFused(), MovedExplicit()


@pretend(Attention)
class SlottedAttention(Attention):
    def __init__(self, *sizes: Any, core: Callable[[], nn.Module] = MovedCore) -> None:
        super().__init__(*sizes)
        self.core = core()


@pretend(Preprocess)
@dataclass(frozen=True)
class Dithered(Preprocess):
    dither: float = 0.0
    squares: tuple[int, ...] = ()


@pretend(Tokenizer)
class EndingTokenizer(Tokenizer):
    def __init__(self, context: int = 77, *, end: int | None = None, special: tuple[int, ...] = ()) -> None:
        super().__init__(context)
        self.extra = {"end": end, "special": [*special]}

    def to_dict(self) -> dict[str, Any]:
        return {"end": self.extra["end"], **super().to_dict(), "special": self.extra["special"]}


def replace_module(name: str, make: Callable[[], nn.Module]) -> Callable[[], Bundle]:
    """Return a function that builds the bundle with one module replaced by another of the same weights."""

    def build() -> Bundle:
        bundle, module = build_bundle(), make()
        module.load_state_dict(bundle.model.get_submodule(name).state_dict())
        bundle.model.set_submodule(name, module)
        return bundle

    return build


def replace_embed(**arguments: Any) -> Callable[[], Bundle]:
    return replace_module("text.embed", partial(ScaledEmbed, 16, 50, 77, **arguments))


def replace_mlp(**arguments: Any) -> Callable[[], Bundle]:
    return replace_module("image.encoder.blocks.0.mlp.f", partial(ActSwiGLU, 16, **arguments))


def replace_residual(**arguments: Any) -> Callable[[], Bundle]:
    def make() -> nn.Module:
        return TappedResidual(Attention(16, 2, None, True), 16, LayerNorm, 0.0, **arguments)

    return replace_module("text.encoder.blocks.0.attn", make)


def replace_attention(**arguments: Any) -> Callable[[], Bundle]:
    return replace_module("image.encoder.blocks.0.attn.f", partial(SlottedAttention, 16, 2, **arguments))


def replace_preprocess(**arguments: Any) -> Callable[[], Bundle]:
    return lambda: build_bundle()._replace(preprocess=Dithered(**vars(build_bundle().preprocess), **arguments))


def replace_tokenizer(**arguments: Any) -> Callable[[], Bundle]:
    return lambda: build_bundle()._replace(tokenizer=EndingTokenizer(**arguments))


DEFAULTS = [
    *(replace_embed(), replace_embed(scale=1), replace_mlp(), replace_mlp(act=partial(nn.SiLU, inplace=False))),
    *(replace_residual(), replace_attention(), replace_attention(core=MovedCore), replace_preprocess()),
    *(replace_preprocess(dither=0), replace_tokenizer(), replace_tokenizer(special=())),
]
OTHER_INPUTS = [
    *(replace_preprocess(dither=0.5), replace_preprocess(squares=(1,))),
    *(replace_tokenizer(end=1), replace_tokenizer(special=(2,))),
]
OTHERS = [
    *(replace_embed(scale=4.0), replace_mlp(act=nn.GELU), replace_mlp(act=partial(nn.SiLU, inplace=True))),
    *(replace_residual(after=nn.Tanh), replace_attention(core=MovedExplicit), *OTHER_INPUTS),
]


@pytest.mark.parametrize("make", DEFAULTS)
def test_later_arguments_at_defaults_keep_the_fingerprint(make: Callable[[], Bundle]) -> None:
    assert compute_fingerprint(make()) == compute_fingerprint(build_bundle())
    assert Embedder(make()).compute_fingerprint() == Embedder(build_bundle()).compute_fingerprint()


@pytest.mark.parametrize("make", OTHERS)
def test_later_arguments_with_other_values_change_the_fingerprint(make: Callable[[], Bundle]) -> None:
    assert compute_fingerprint(make()) != compute_fingerprint(build_bundle())


@pytest.mark.parametrize("make", OTHER_INPUTS)
def test_later_arguments_with_other_values_change_the_database_fingerprint(make: Callable[[], Bundle]) -> None:
    assert Embedder(make()).compute_fingerprint() != Embedder(build_bundle()).compute_fingerprint()


def test_fingerprint_covers_every_attribute_of_user_classes() -> None:
    """Defaults of a user's class may change without a release of vitkit, so none is left out."""

    class Mine(ActSwiGLU):
        def __init__(self, dim: int, *, limit: float = 1.0) -> None:
            super().__init__(dim)
            self.limit = limit

    place = "image.encoder.blocks.0.mlp.f"
    first, second = (replace_module(place, partial(Mine, 16, limit=limit))() for limit in (1.0, 2.0))
    (_, path, fields), *_ = iterate_settings(first.model.get_submodule(place))
    assert path.endswith(".Mine") and fields == {"limit": "1.0"}
    assert compute_fingerprint(first) != compute_fingerprint(second)
