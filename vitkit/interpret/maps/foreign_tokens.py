"""The tokens of others' models, by the names of their classes: none of these packages need be installed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn


class Tokens(NamedTuple):
    """Prefix tokens in front, then a grid (h, w) of patches, each (height, width) pixels, in raster order."""

    prefix: tuple[str, ...]
    grid: tuple[int, int]
    patch: tuple[int, int]


def registers(count: int) -> tuple[str, ...]:
    return tuple(f"reg{place}" for place in range(count))


def on_grid(prefix: tuple[str, ...], patch: Any, size: tuple[int, int]) -> Tokens:
    """Raises: ValueError where patches do not divide the image: it is not known what becomes of the rest."""
    height, width = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    if size[0] % height or size[1] % width or not min(size):
        raise ValueError(f"size must be a multiple of {height} x {width}, the model's patch, got {size[0]} x {size[1]}")
    return Tokens(prefix, (size[0] // height, size[1] // width), (height, width))


def of_timm(model: Any, size: tuple[int, int]) -> Tokens:
    cls = () if model.cls_token is None else ("cls",)
    count = 0 if model.reg_token is None else model.reg_token.shape[1]
    return on_embedded((*cls, *registers(count)), model, size)


def on_embedded(prefix: tuple[str, ...], model: Any, size: tuple[int, int]) -> Tokens:
    """A convolutional stem in front of the patches makes them larger. Raises: ValueError."""
    embed = model.patch_embed
    if embed.strict_img_size and size != tuple(embed.img_size):
        raise ValueError(f"size must be the model's own, {embed.img_size[0]} x {embed.img_size[1]}, got {size}")
    ratio = embed.feat_ratio(as_scalar=False)
    return on_grid(prefix, tuple(int(side) for side in ratio), size)


def of_transformers(model: Any, size: tuple[int, int]) -> Tokens:
    config = model.config
    kind = type(config).__name__
    if kind in ("CLIPConfig", "SiglipConfig"):
        config = config.vision_config
        kind = type(config).__name__
    if kind not in CONFIGS:
        raise ValueError(f"the tokens of {type(model).__name__} are not known; give a Layout")
    return on_grid(CONFIGS[kind](config), config.patch_size, size)


CONFIGS: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "ViTConfig": lambda config: ("cls",),
    "Dinov2Config": lambda config: ("cls",),
    "CLIPVisionConfig": lambda config: ("cls",),
    "DeiTConfig": lambda config: ("cls", "dist"),
    "SiglipVisionConfig": lambda config: (),
    "Dinov2WithRegistersConfig": lambda config: ("cls", *registers(config.num_register_tokens)),
    "DINOv3ViTConfig": lambda config: ("cls", *registers(config.num_register_tokens)),
}

# By the full name of a class; a class derived from one of these has the same tokens, if not named itself.
KNOWN: dict[str, Callable[[Any, tuple[int, int]], Tokens]] = {
    "timm.models.vision_transformer.VisionTransformer": of_timm,
    "timm.models.vision_transformer_relpos.VisionTransformerRelPos": lambda model, size: on_embedded(
        () if model.cls_token is None else ("cls",), model, size
    ),
    "timm.models.eva.Eva": of_timm,
    "timm.models.beit.Beit": lambda model, size: on_embedded(("cls",), model, size),
    "timm.models.cait.Cait": lambda model, size: on_embedded(("cls",), model, size),
    "timm.models.deit.VisionTransformerDistilled": lambda model, size: on_embedded(("cls", "dist"), model, size),
    "timm.models.naflexvit.NaFlexVit": lambda model, size: of_naflex(model.embeds, size),
    "open_clip.transformer.VisionTransformer": lambda model, size: on_grid(("cls",), model.patch_size, size),
    "open_clip.model.CLIP": lambda model, size: of_foreign(model.visual, size),
    "open_clip.model.CustomTextCLIP": lambda model, size: of_foreign(model.visual, size),
    "open_clip.coca_model.CoCa": lambda model, size: of_foreign(model.visual, size),
    "open_clip.timm_model.TimmModel": lambda model, size: of_foreign(model.trunk, size),
    "torchvision.models.vision_transformer.VisionTransformer": lambda model, size: on_grid(
        ("cls",), model.patch_size, size
    ),
    "transformers.modeling_utils.PreTrainedModel": of_transformers,
}


def of_naflex(embeds: Any, size: tuple[int, int]) -> Tokens:
    cls = () if embeds.cls_token is None else ("cls",)
    count = 0 if embeds.reg_token is None else embeds.reg_token.shape[1]
    return on_grid((*cls, *registers(count)), embeds.patch_size, size)


def of_foreign(model: nn.Module, size: tuple[int, int]) -> Tokens:
    """Of an image of (height, width) pixels. Raises: ValueError."""
    for kind in type(model).__mro__:
        if known := KNOWN.get(f"{kind.__module__}.{kind.__qualname__}"):
            return known(model, size)
    raise ValueError(f"the tokens of {type(model).__name__} are not known; give a Layout")
