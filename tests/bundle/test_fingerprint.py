from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
import torch

from vitkit.bundle.bundle import Bundle
from vitkit.bundle.fingerprint import fingerprint
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, TextTower, ViT
from vitkit.nn import MLP, Encoder, EndOfText, QuickGELU


def opened() -> Bundle:
    torch.manual_seed(0)
    image = ViT(Encoder(16, 1, 2), (8, 8), (4, 4), 8)
    model = CLIP(image, TextTower(Encoder(16, 1, 2, causal=True), vocabulary=50, outputs=8))
    return Bundle(model, {}, Preprocess((8, 8), (0.5,) * 3, (0.5,) * 3), tokenizer=Tokenizer())


def test_the_same_model_has_the_same_fingerprint_every_time() -> None:
    assert fingerprint(opened()) == fingerprint(opened())
    assert len(fingerprint(opened())) == 32


def test_it_does_not_depend_on_the_mode() -> None:
    one = opened()
    one.model.eval()
    assert fingerprint(one) == fingerprint(opened())


@torch.no_grad()
def weight(one: Bundle) -> Bundle:
    one.model.get_parameter("text.head.weight")[0, 0] += 1e-3
    return one


def activation(one: Bundle) -> Bundle:
    cast(MLP, one.model.get_submodule("text.encoder.blocks.0.mlp.f")).act = QuickGELU()
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


@pytest.mark.parametrize("change", [weight, activation, epsilon, end, size, context])
def test_whatever_changes_an_embedding_changes_it(change: Callable[[Bundle], Bundle]) -> None:
    assert fingerprint(change(opened())) != fingerprint(opened())
