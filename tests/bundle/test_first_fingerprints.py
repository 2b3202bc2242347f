"""Fingerprints equal those of the first version; otherwise every database and cache would be rebuilt.

Parameters are set to multiples of 1/64, which do not depend on the release of torch.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from vitkit.bundle import first_version
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.fingerprint import compute_fingerprint
from vitkit.bundle.folder import open_folder
from vitkit.bundle.image_bundle import Embedding, select_embedding_tower, select_tower
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.inference import prompts
from vitkit.inference.prompts import PHOTO, embed_classes, get_cache_folder
from vitkit.inference.zero_shot_classifier import Nearest
from vitkit.models import CLIP, MAE, TextTower, ViT, blockwise
from vitkit.models.headed_tower import HeadedTower
from vitkit.nn import (
    MLP,
    ALiBi,
    Attend,
    Attention,
    Encoder,
    EndOfText,
    ExplicitCore,
    Last,
    LayerNorm,
    Learned,
    Mean,
    PostNorm,
    PreNorm,
    QuickGELU,
    RelativeBias,
    Rotary,
    Sinusoidal,
    SwiGLU,
    bicubic,
)
from vitkit.retrieval.embedder import Embedder

BEFORE = Path(__file__).parents[1] / "frozen" / "before"
WORDS = BEFORE / "tokenizer.json"
IMAGES = Preprocess((8, 12), (0.5, 0.25, 0.5), (0.5, 0.25, 0.25), "bilinear", 0.875)


def fill(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            values = (torch.arange(parameter.numel()) + index) % 128
            parameter.copy_(values.view(parameter.shape) / 64 - 1)
    return model


def vit(outputs: int = 3, **slots) -> ViT:
    encoder = {name: slots.pop(name) for name in ("attention", "norm", "mlp", "residual", "position") if name in slots}
    return ViT(Encoder(16, 2, 4, **encoder), (8, 12), (4, 4), outputs, **slots)


def mae(**slots) -> MAE:
    return MAE(Encoder(16, 1, 2), Encoder(8, 1, 2), (8, 12), (4, 4), **slots)


def text(outputs: int = 8, causal: bool = True, **slots) -> TextTower:
    encoder = Encoder(16, 1, 2, causal=causal, drop_path=0.5)
    return TextTower(encoder, 24, 8, outputs, **{"pool": partial(EndOfText, end=1)} | slots)


def clip(**options) -> CLIP:
    return CLIP(vit(8, pre_norm=LayerNorm, head=partial(nn.Linear, bias=False)), text(), **options)


def siglip() -> CLIP:
    pool = partial(Attend, heads=2, mlp=partial(MLP, ratio=2.0, act=partial(nn.GELU, "tanh")))
    return CLIP(vit(0, prefix=0, pool=pool), text(16, False, pool=Last), scale=10.0, bias=-10.0)


def set_explicit_cores(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Attention):
            module.core = ExplicitCore()
    return model


CENTRES = torch.eye(2, 16)
CLASSES = ("cat", "d\u00f6g", "owl")
BUNDLES: Mapping[str, Callable[[], Bundle]] = {
    "vit": lambda: Bundle(vit(), {}, IMAGES, CLASSES),
    "vit of several classes": lambda: Bundle(vit(), {}, IMAGES, CLASSES, multilabel=True),
    "vit without a head": lambda: Bundle(vit(0, prefix=5, pool=Mean), {}, IMAGES),
    "vit without a final norm": lambda: Bundle(
        ViT(Encoder(16, 1, 2, final_norm=False), (8, 12), (4, 4), 3, pool=partial(Mean, norm=LayerNorm)), {}, IMAGES
    ),
    "grey vit": lambda: Bundle(vit(channels=1), {}, Preprocess((8, 12), (0.5,), (0.5,)), CLASSES),
    "tower of a vit": lambda: select_tower(Bundle(vit(), {}, IMAGES, CLASSES)),
    "rotary": lambda: Bundle(vit(position=partial(Rotary, axes=2, base=100.0)), {}, IMAGES, CLASSES),
    "alibi": lambda: Bundle(vit(position=partial(ALiBi, prefix=1)), {}, IMAGES, CLASSES),
    "relative bias": lambda: Bundle(vit(position=partial(RelativeBias, axes=2, prefix=1)), {}, IMAGES, CLASSES),
    "relative bias, no prefix": lambda: Bundle(
        vit(prefix=0, pool=Mean, position=partial(RelativeBias, axes=2, buckets=8, reach=16)), {}, IMAGES, CLASSES
    ),
    "swiglu": lambda: Bundle(vit(mlp=partial(SwiGLU, ratio=2.0)), {}, IMAGES, CLASSES),
    "quick gelu": lambda: Bundle(vit(mlp=partial(MLP, act=QuickGELU)), {}, IMAGES, CLASSES),
    "relu": lambda: Bundle(vit(mlp=partial(MLP, act=nn.ReLU)), {}, IMAGES, CLASSES),
    "attend": lambda: Bundle(vit(pool=partial(Attend, heads=2)), {}, IMAGES, CLASSES),
    "kv_heads": lambda: Bundle(vit(attention=partial(Attention, kv_heads=2)), {}, IMAGES, CLASSES),
    "head_dim, scale, no bias": lambda: Bundle(
        vit(attention=partial(Attention, head_dim=8, scale=1.0, bias=False, dropout=0.1)), {}, IMAGES, CLASSES
    ),
    "qk_norm": lambda: Bundle(vit(attention=partial(Attention, qk_norm=nn.RMSNorm)), {}, IMAGES, CLASSES),
    "explicit cores": lambda: Bundle(set_explicit_cores(vit()), {}, IMAGES, CLASSES),
    "post norm": lambda: Bundle(vit(residual=PostNorm, norm=nn.RMSNorm), {}, IMAGES, CLASSES),
    "layer scale": lambda: Bundle(vit(residual=partial(PreNorm, scale=1e-5, dropout=0.1)), {}, IMAGES, CLASSES),
    "sinusoidal": lambda: Bundle(vit(table=Sinusoidal), {}, IMAGES, CLASSES),
    "resampled otherwise": lambda: Bundle(vit(table=partial(Learned, resample=bicubic)), {}, IMAGES, CLASSES),
    "memory": lambda: Bundle(
        nn.Sequential(Encoder(16, 2, 4, memory_dim=8, drop_path=0.1), nn.Dropout(0.25)), {}, IMAGES
    ),
    "mae": lambda: Bundle(mae(), {}, IMAGES),
    "mae, blockwise": lambda: Bundle(mae(masking=blockwise, ratio=0.5, norm_pix=False, table=Learned), {}, IMAGES),
    "tower of a mae": lambda: select_tower(Bundle(mae(), {}, IMAGES)),
    "clip": lambda: Bundle(clip(), {}, IMAGES, tokenizer=Tokenizer(8)),
    "clip, words": lambda: Bundle(clip(bias=-10.0), {}, IMAGES, tokenizer=Tokenizer(8, vocabulary=WORDS)),
    "siglip, words": lambda: Bundle(
        siglip(), {}, IMAGES, tokenizer=Tokenizer(8, whole=True, vocabulary=WORDS, clean="canonicalize", pad=1)
    ),
    "tower of a clip": lambda: select_embedding_tower(Bundle(clip(), {}, IMAGES, tokenizer=Tokenizer(8))),
    "classes in words": lambda: Bundle(
        HeadedTower(vit(), Nearest(Embedding(nn.Identity()), CENTRES, 2.0, -1.0), 2), {}, IMAGES
    ),
    "text tower, with what it does not need": lambda: Bundle(text(), {}, IMAGES, tokenizer=Tokenizer(8)),
}
FINGERPRINTS = {
    "vit": "5667fb56f2c0e3b418f0d50b843daa44",
    "vit of several classes": "5667fb56f2c0e3b418f0d50b843daa44",
    "vit without a head": "3b1e6e2d357b10630fa35a7ef3307a0f",
    "vit without a final norm": "752dceb85a42067f70e133852bd2ab49",
    "grey vit": "4fc741ddffb878546eb79f9b5728ca16",
    "tower of a vit": "194e4cc6785eb520a7d3606e9e2cc514",
    "rotary": "510e22a5bed18f697ea20e712eaa3075",
    "alibi": "7fe2d2d05369441d20209fe849e693c4",
    "relative bias": "2113983e7ff1f80569f7f64ee24bcd40",
    "relative bias, no prefix": "b31780ccd44c5c6f0ec4bc211ec6f586",
    "swiglu": "eb6e1f7179050598b6a20e2de2fc8635",
    "quick gelu": "5e5f9235f82077cd442e113f1a737bd5",
    "relu": "7229b1e17e25ddef11b46504c3c5a887",
    "attend": "7b04d9bcebb1cb1ae18ab8f7a0877865",
    "kv_heads": "4ad85e9e3fffbac456878c526801ce89",
    "head_dim, scale, no bias": "c80ef2f6918b334d7d6086dbdfbf46c3",
    "qk_norm": "a9904ad0eaabfa2e5b5adbaefea61c96",
    "explicit cores": "71f6d21defddf6678a22b441eb130afd",
    "post norm": "aaf0596f6943525449f0d6de3f5d5721",
    "layer scale": "c20b5d879c1d8f29e22a18d4b91e47e7",
    "sinusoidal": "fc132df1e0560574a6eeeefef4f2aa8b",
    "resampled otherwise": "fbf23bf13c93f108a2acf09a909619e5",
    "memory": "ef408c5e563eb1cc461c2fcd1c6fc260",
    "mae": "7b4f2ff347bb05d6d1eda9633deec27f",
    "mae, blockwise": "917fbd20bb437eab799fc23fc100f89f",
    "tower of a mae": "d650fa2ed644d32e97909bfb91049399",
    "clip": "a101a01c3a7dcd36246c370819764d60",
    "clip, words": "68185a070bca781c0264f637ab8f74ed",
    "siglip, words": "57a5a090f3022c456d892bbbfd575463",
    "tower of a clip": "ab6b7f0418689935502fbf1963fedb93",
    "classes in words": "30a96e959630d670df1e669a3b9d08aa",
    "text tower, with what it does not need": "6d011b9f1a20f528745b87cfe588576e",
}
# of tests/frozen/before
FOLDERS = {
    "classify/model": "2e8597d3f2bfc20c2c24a8d17906f933",
    "reconstruct/model": "ceb2a82c0e2b0e21f7ca7ab56778d407",
    "contrast/model": "92ae03e0f601c3159816d0507112db8a",
    "imported/hf_clip": "108dafbb60eb6a3a3d9919127826093b",
    "imported/hf_mae": "63261e4de0adfa19f3e825491c729aeb",
    "imported/hf_siglip": "53f6d1e0d1eb894750efddf5268a1d67",
    "imported/hf_vit": "9fe6265d7624d45f66333f6971e346ca",
    "imported/mae.pth": "63261e4de0adfa19f3e825491c729aeb",
    "imported/openclip": "8fd9e2c0122e204b7df3ee11b8e10806",
    "imported/timm": "c573bdef4bd2e84b08f165b332362d82",
    "imported/timm.safetensors": "c3574f5152d1a96f613f02f616ba664d",
}
# which databases keep
DATABASES = {
    "clip": "6c84e07eb82b12a3c68db3159673b282",
    "clip, words": "26a31d8371e5c5a275e0e9d6310dbccd",
    "siglip, words": "cc27ca76f47de6e421ae06d1f0882657",
    "contrast/model": "4fe994402d10f1759bfa35de1060493e",
    "imported/hf_clip": "29bbc3472e3617e71f474c4af615ed89",
    "imported/hf_siglip": "3b9f275bd0d72bbf08db41904ef60dc3",
    "imported/openclip": "df0887a710489682b6a34a999de02542",
}
# file names of the cached embeddings of the classes "one" and "two"
KEYS = {
    "contrast/model": "8270c15ef382da9ea35b33b5d8667574",
    "imported/hf_clip": "0ca5d9e0a1b6bb58b8fdc24087fb646c",
    "imported/hf_siglip": "36bd3d03f533e03f0d030fbd3cf97e9b",
    "imported/openclip": "40deca6d66f5651b6d3bcb4f5a93cc4e",
}


def build_bundle(name: str) -> Bundle:
    bundle = BUNDLES[name]()
    return bundle._replace(model=fill(bundle.model))


def open_bundle(name: str) -> Bundle:
    return build_bundle(name) if name in BUNDLES else open_folder(BEFORE / name)


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_model_fingerprint_equals_first_version(name: str) -> None:
    assert compute_fingerprint(build_bundle(name)) == FINGERPRINTS[name]


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_fingerprint_equals_first_version(name: str) -> None:
    assert compute_fingerprint(open_folder(BEFORE / name)) == FOLDERS[name]


@pytest.mark.parametrize("name", DATABASES)
def test_databases_of_first_version_accept_their_model(name: str) -> None:
    assert Embedder(open_bundle(name)).compute_fingerprint() == DATABASES[name]


@pytest.mark.parametrize("name", KEYS)
def test_cached_classes_of_first_version_are_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clip, names = open_folder(BEFORE / name), ("one", "two")
    embed_classes(clip, names, PHOTO)
    (file,) = get_cache_folder().iterdir()
    assert file.stem == KEYS[name]
    monkeypatch.setattr(prompts, "encode_classes", None)  # raises if it is called
    embed_classes(clip, names, PHOTO)


def test_every_class_of_first_version_has_a_digest() -> None:
    modules = {type(module).__qualname__ for name in BUNDLES for module in build_bundle(name).model.modules()}
    assert {*first_version.CLASSES} <= modules
