"""Token layouts of other libraries' models, by class name: none of these packages need be installed."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn


class Tokens(NamedTuple):
    """Prefix tokens in front, then a grid (h, w) of patches, each (height, width) pixels, in raster order."""

    prefix: tuple[str, ...]
    grid: tuple[int, int]
    patch: tuple[int, int]


def name_registers(count: int) -> tuple[str, ...]:
    return tuple(f"reg{index}" for index in range(count))


def make_tokens(prefix: tuple[str, ...], patch: Any, size: tuple[int, int]) -> Tokens:
    """Return the tokens of an image cut into patches. Raises: ValueError for an image that they do not divide."""
    height, width = patch if isinstance(patch, (tuple, list)) else (patch, patch)
    if size[0] % height or size[1] % width or not min(size):
        raise ValueError(f"size must be a multiple of {height} x {width}, the model's patch, got {size[0]} x {size[1]}")
    return Tokens(prefix, (size[0] // height, size[1] // width), (height, width))


def get_timm_tokens(model: Any, size: tuple[int, int]) -> Tokens:
    cls = () if model.cls_token is None else ("cls",)
    count = 0 if model.reg_token is None else model.reg_token.shape[1]
    return get_embed_tokens((*cls, *name_registers(count)), model, size)


def get_embed_tokens(prefix: tuple[str, ...], model: Any, size: tuple[int, int]) -> Tokens:
    """Return the tokens of timm's patch embedding; a convolutional stem in front makes patches larger.

    Raises: ValueError for a size that it does not take.
    """
    embed = model.patch_embed
    if embed.strict_img_size and size != tuple(embed.img_size):
        raise ValueError(f"size must be the model's own, {embed.img_size[0]} x {embed.img_size[1]}, got {size}")
    ratio = embed.feat_ratio(as_scalar=False)
    return make_tokens(prefix, tuple(int(length) for length in ratio), size)


def get_transformers_tokens(model: Any, size: tuple[int, int]) -> Tokens:
    config = model.config
    kind = type(config).__name__
    if kind in ("CLIPConfig", "SiglipConfig"):
        config = config.vision_config
        kind = type(config).__name__
    if kind not in CONFIG_PREFIXES:
        raise ValueError(f"the tokens of {type(model).__name__} are unknown; give a Layout")
    return make_tokens(CONFIG_PREFIXES[kind](config), config.patch_size, size)


CONFIG_PREFIXES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    "ViTConfig": lambda config: ("cls",),
    "Dinov2Config": lambda config: ("cls",),
    "CLIPVisionConfig": lambda config: ("cls",),
    "DeiTConfig": lambda config: ("cls", "dist"),
    "SiglipVisionConfig": lambda config: (),
    "Dinov2WithRegistersConfig": lambda config: ("cls", *name_registers(config.num_register_tokens)),
    "DINOv3ViTConfig": lambda config: ("cls", *name_registers(config.num_register_tokens)),
}

# By class path; a subclass that is not listed itself has the same tokens.
TOKENS: dict[str, Callable[[Any, tuple[int, int]], Tokens]] = {
    "timm.models.vision_transformer.VisionTransformer": get_timm_tokens,
    "timm.models.vision_transformer_relpos.VisionTransformerRelPos": lambda model, size: get_embed_tokens(
        () if model.cls_token is None else ("cls",), model, size
    ),
    "timm.models.eva.Eva": get_timm_tokens,
    "timm.models.beit.Beit": lambda model, size: get_embed_tokens(("cls",), model, size),
    "timm.models.cait.Cait": lambda model, size: get_embed_tokens(("cls",), model, size),
    "timm.models.deit.VisionTransformerDistilled": lambda model, size: get_embed_tokens(("cls", "dist"), model, size),
    "timm.models.naflexvit.NaFlexVit": lambda model, size: get_naflex_tokens(model.embeds, size),
    "open_clip.transformer.VisionTransformer": lambda model, size: make_tokens(("cls",), model.patch_size, size),
    "open_clip.model.CLIP": lambda model, size: find_foreign_tokens(model.visual, size),
    "open_clip.model.CustomTextCLIP": lambda model, size: find_foreign_tokens(model.visual, size),
    "open_clip.coca_model.CoCa": lambda model, size: find_foreign_tokens(model.visual, size),
    "open_clip.timm_model.TimmModel": lambda model, size: find_foreign_tokens(model.trunk, size),
    "torchvision.models.vision_transformer.VisionTransformer": lambda model, size: make_tokens(
        ("cls",), model.patch_size, size
    ),
    "transformers.modeling_utils.PreTrainedModel": get_transformers_tokens,
}


def get_naflex_tokens(embeds: Any, size: tuple[int, int]) -> Tokens:
    cls = () if embeds.cls_token is None else ("cls",)
    count = 0 if embeds.reg_token is None else embeds.reg_token.shape[1]
    return make_tokens((*cls, *name_registers(count)), embeds.patch_size, size)


def find_foreign_tokens(model: nn.Module, size: tuple[int, int]) -> Tokens:
    """Return the tokens of an image of (height, width) pixels. Raises: ValueError for an unknown model."""
    for kind in type(model).__mro__:
        if get_tokens := TOKENS.get(f"{kind.__module__}.{kind.__qualname__}"):
            return get_tokens(model, size)
    raise ValueError(f"the tokens of {type(model).__name__} are unknown; give a Layout")
