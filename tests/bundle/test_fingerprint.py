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


def opened() -> Bundle:
    torch.manual_seed(0)
    image = ViT(Encoder(16, 1, 2, mlp=SwiGLU), (8, 8), (4, 4), 8)
    model = CLIP(image, TextTower(Encoder(16, 1, 2, causal=True), vocabulary=50, outputs=8))
    return Bundle(model, {}, Preprocess((8, 8), (0.5,) * 3, (0.5,) * 3), tokenizer=Tokenizer())


def test_equal_bundles_have_equal_fingerprints() -> None:
    assert compute_fingerprint(opened()) == compute_fingerprint(opened())
    assert len(compute_fingerprint(opened())) == 32


def test_fingerprint_is_independent_of_training_mode() -> None:
    one = opened()
    one.model.eval()
    assert compute_fingerprint(one) == compute_fingerprint(opened())


@torch.no_grad()
def weight(one: Bundle) -> Bundle:
    one.model.get_parameter("text.head.weight")[0, 0] += 1e-3
    return one


def activation(one: Bundle) -> Bundle:
    cast(MLP, one.model.get_submodule("text.encoder.blocks.0.mlp.f")).act = QuickGELU()
    return one


def gate(one: Bundle) -> Bundle:
    cast(SwiGLU, one.model.get_submodule("image.encoder.blocks.0.mlp.f")).gate = torch.nn.Identity()
    return one


def epsilon(one: Bundle) -> Bundle:
    cast(torch.nn.LayerNorm, one.model.get_submodule("image.encoder.norm")).eps = 1e-5
    return one


def end(one: Bundle) -> Bundle:
    cast(EndOfText, one.model.get_submodule("text.pool")).end = 7
    return one


def size(one: Bundle) -> Bundle:
    return one._replace(preprocess=replace(one.preprocess, size=(8, 12)))


def context(one: Bundle) -> Bundle:
    return one._replace(tokenizer=Tokenizer(76))


@pytest.mark.parametrize("change", [weight, activation, gate, epsilon, end, size, context])
def test_changes_of_embeddings_change_the_fingerprint(change: Callable[[Bundle], Bundle]) -> None:
    assert compute_fingerprint(change(opened())) != compute_fingerprint(opened())


def test_fingerprint_needs_no_preprocessing_and_no_tokenizer() -> None:
    text = opened()._replace(model=opened().model.get_submodule("text"), preprocess=None)
    bundles = text, text._replace(tokenizer=None), text._replace(tokenizer=Tokenizer(76))
    assert len({*map(compute_fingerprint, bundles)}) == 3


# Classes as a later version might have them, each under the name of a present one.


def later(kind: type, path: str = "") -> Callable[[type], type]:
    """Name a class after the one that it stands for. Args: path: of the module that it moves to, any that exists."""

    def rename(stand_in: type) -> type:
        stand_in.__module__, stand_in.__qualname__ = path or kind.__module__, kind.__qualname__
        return stand_in

    return rename


@later(TokenEmbed)
class ScaledEmbed(TokenEmbed):
    def __init__(self, *sizes: int, scale: float = 1.0) -> None:
        super().__init__(*sizes)
        self.scale = scale


@later(SwiGLU)
class ActSwiGLU(nn.Module):
    def __init__(self, dim: int, *, act: Callable[[], nn.Module] = nn.SiLU) -> None:
        super().__init__()
        hidden = int(dim * 8 / 3)
        self.gate_up, self.act, self.down = nn.Linear(dim, 2 * hidden), act(), nn.Linear(hidden, dim)


@later(PreNorm)
class TappedResidual(PreNorm):
    """Args: after: a slot whose default is nothing, kept under another name."""

    def __init__(self, *parts: Any, after: Callable[[], nn.Module] | None = None) -> None:
        super().__init__(*parts)
        self.tap, self.after_norm = nn.Identity(), nn.Identity() if after is None else after()


@later(FusedCore, "vitkit.nn.encoder")
class MovedFused(FusedCore):
    pass


@later(ExplicitCore, "vitkit.nn.encoder")
class MovedExplicit(ExplicitCore):
    pass


@later(MeasuredCore, "vitkit.nn.encoder")
class MovedCore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fused, self.explicit = MovedFused(), MovedExplicit()


@later(Attention)
class SlottedAttention(Attention):
    def __init__(self, *sizes: Any, core: Callable[[], nn.Module] = MovedCore) -> None:
        super().__init__(*sizes)
        self.core = core()


@later(Preprocess)
@dataclass(frozen=True)
class Dithered(Preprocess):
    dither: float = 0.0
    squares: tuple[int, ...] = ()


@later(Tokenizer)
class EndingTokenizer(Tokenizer):
    def __init__(self, context: int = 77, *, end: int | None = None, special: tuple[int, ...] = ()) -> None:
        super().__init__(context)
        self.more = {"end": end, "special": [*special]}

    def to_dict(self) -> dict[str, Any]:
        return {"end": self.more["end"], **super().to_dict(), "special": self.more["special"]}


def put(name: str, make: Callable[[], nn.Module]) -> Callable[[], Bundle]:
    """Return what makes the bundle with another module of the same weights in one place."""

    def bundle() -> Bundle:
        one, module = opened(), make()
        module.load_state_dict(one.model.get_submodule(name).state_dict())
        one.model.set_submodule(name, module)
        return one

    return bundle


def embed(**later: Any) -> Callable[[], Bundle]:
    return put("text.embed", partial(ScaledEmbed, 16, 50, 77, **later))


def gated(**later: Any) -> Callable[[], Bundle]:
    return put("image.encoder.blocks.0.mlp.f", partial(ActSwiGLU, 16, **later))


def residual(**later: Any) -> Callable[[], Bundle]:
    def make() -> nn.Module:
        return TappedResidual(Attention(16, 2, None, True), 16, LayerNorm, 0.0, **later)

    return put("text.encoder.blocks.0.attn", make)


def attention(**later: Any) -> Callable[[], Bundle]:
    return put("image.encoder.blocks.0.attn.f", partial(SlottedAttention, 16, 2, **later))


def pictures(**later: Any) -> Callable[[], Bundle]:
    return lambda: opened()._replace(preprocess=Dithered(**vars(opened().preprocess), **later))


def words(**later: Any) -> Callable[[], Bundle]:
    return lambda: opened()._replace(tokenizer=EndingTokenizer(**later))


DEFAULTS = [
    *(embed(), embed(scale=1), gated(), gated(act=partial(nn.SiLU, inplace=False)), residual()),
    *(attention(), attention(core=MovedCore), pictures(), pictures(dither=0), words(), words(special=())),
]
OTHERS = [
    *(embed(scale=4.0), gated(act=nn.GELU), gated(act=partial(nn.SiLU, inplace=True)), residual(after=nn.Tanh)),
    *(attention(core=MovedExplicit), pictures(dither=0.5), pictures(squares=(1,)), words(end=1), words(special=(2,))),
]


@pytest.mark.parametrize("make", DEFAULTS)
def test_later_arguments_at_defaults_keep_the_fingerprint(make: Callable[[], Bundle]) -> None:
    assert compute_fingerprint(make()) == compute_fingerprint(opened())
    assert Embedder(make()).compute_fingerprint() == Embedder(opened()).compute_fingerprint()


@pytest.mark.parametrize("make", OTHERS)
def test_later_arguments_with_other_values_change_the_fingerprint(make: Callable[[], Bundle]) -> None:
    assert compute_fingerprint(make()) != compute_fingerprint(opened())


@pytest.mark.parametrize("make", [pictures(dither=0.5), pictures(squares=(1,)), words(end=1), words(special=(2,))])
def test_later_arguments_with_other_values_change_the_database_fingerprint(make: Callable[[], Bundle]) -> None:
    assert Embedder(make()).compute_fingerprint() != Embedder(opened()).compute_fingerprint()


def test_fingerprint_covers_every_attribute_of_user_classes() -> None:
    """Its defaults are its own business, and may change without a version of vitkit."""

    class Mine(ActSwiGLU):
        def __init__(self, dim: int, *, limit: float = 1.0) -> None:
            super().__init__(dim)
            self.limit = limit

    place = "image.encoder.blocks.0.mlp.f"
    one, other = (put(place, partial(Mine, 16, limit=limit))() for limit in (1.0, 2.0))
    (_, path, fields), *_ = iterate_settings(one.model.get_submodule(place))
    assert path.endswith(".Mine") and fields == {"limit": "1.0"}
    assert compute_fingerprint(one) != compute_fingerprint(other)
