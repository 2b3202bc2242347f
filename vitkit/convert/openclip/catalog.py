"""Models of open_clip by name, as its tables describe them."""

from typing import Any

from vitkit.support.errors import format_few, suggest

PREPROCESS_KEYS = ("size", "mode", "mean", "std", "interpolation", "resize_mode", "fill_color")


def parse_name(source: str, name: str) -> tuple[str, str]:
    """Split NAME@PRETRAINED into model and tag. A model with one tag may leave it out. Raises: ValueError."""
    import open_clip

    model, _, tag = name.partition("@")
    if model not in open_clip.list_models():
        raise ValueError(f"{source} must name a model of open_clip{suggest(model, open_clip.list_models())}")
    tags = open_clip.list_pretrained_tags_by_model(model)
    if not tag and len(tags) == 1:
        return model, tags[0]
    if tag not in tags:
        raise ValueError(f"{source} must be openclip:NAME@PRETRAINED, with one of {', '.join(tags) or 'no weights'}")
    return model, tag


def look_up_configs(source: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the model_cfg and the preprocess_cfg of openclip:NAME or openclip:NAME@PRETRAINED, and notes.

    Raises: ValueError for an unknown name.
    """
    import open_clip

    model, _, tag = source.removeprefix("openclip:").partition("@")
    config = open_clip.get_model_config(model)
    if config is None:
        raise ValueError(f"{source} must name a model of open_clip{suggest(model, open_clip.list_models())}")
    pretrained = {
        tag: open_clip.get_pretrained_cfg(model, tag) for tag in open_clip.list_pretrained_tags_by_model(model)
    }
    if tag and tag not in pretrained:
        raise ValueError(f"{source} must be openclip:{model} or end in @ and one of {', '.join(pretrained) or 'none'}")
    # The tag has the activation of the training; with the name alone, some of OpenAI's weights get a wrong one.
    default = bool(config.get("quick_gelu", False))
    quick_gelu = {name: bool(weights.get("quick_gelu", default)) for name, weights in pretrained.items()}
    weights, notes = pretrained.get(tag, {}), []
    if not tag:
        act, other = ("QuickGELU", "GELU") if default else ("GELU", "QuickGELU")
        others = [f"@{name}" for name, quick in quick_gelu.items() if quick != default]
        hint = f" ({other} with {format_few(others)})" if others else ""
        notes.append(f"activation {act}{hint} and OpenCLIP's default preprocessing, as {source} has without a tag")
    preprocess = {key: weights[key] for key in PREPROCESS_KEYS if key in weights}
    return {**config, "quick_gelu": quick_gelu.get(tag, default)}, preprocess, notes
