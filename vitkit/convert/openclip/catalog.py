"""Models of open_clip by name: its tables say what they are and where their weights lie."""

from typing import Any

from vitkit.support.errors import suggest

PICTURES = ("size", "mode", "mean", "std", "interpolation", "resize_mode", "fill_color")


def parse_name(source: str, name: str) -> tuple[str, str]:
    """The model and its tag, which must be named where there is more than one."""
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


def told_by(source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What open_clip's tables say of openclip:NAME or openclip:NAME@PRETRAINED: its model, and its pictures."""
    import open_clip

    model, _, tag = source.removeprefix("openclip:").partition("@")
    config = open_clip.get_model_config(model)
    if config is None:
        raise ValueError(f"{source} must name a model of open_clip{suggest(model, open_clip.list_models())}")
    weights = (open_clip.get_pretrained_cfg(model, tag) or {}) if tag else {}
    # The tag knows how it was trained; the model's name alone builds some OpenAI weights with the wrong activation.
    quick = bool(weights.get("quick_gelu", config.get("quick_gelu", False)))
    pictures = {name: weights[name] for name in PICTURES if name in weights}
    return {**config, "quick_gelu": quick}, pictures
