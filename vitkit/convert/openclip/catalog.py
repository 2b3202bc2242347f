"""Models of open_clip by name, as its tables describe them."""

from typing import Any

from vitkit.support.errors import suggest

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


def look_up_configs(source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model_cfg and the preprocess_cfg of openclip:NAME or openclip:NAME@PRETRAINED. Raises: ValueError."""
    import open_clip

    model, _, tag = source.removeprefix("openclip:").partition("@")
    config = open_clip.get_model_config(model)
    if config is None:
        raise ValueError(f"{source} must name a model of open_clip{suggest(model, open_clip.list_models())}")
    weights = (open_clip.get_pretrained_cfg(model, tag) or {}) if tag else {}
    # The tag has the activation of the training; with the name alone, some of OpenAI's weights get a wrong one.
    quick_gelu = bool(weights.get("quick_gelu", config.get("quick_gelu", False)))
    preprocess = {key: weights[key] for key in PREPROCESS_KEYS if key in weights}
    return {**config, "quick_gelu": quick_gelu}, preprocess
