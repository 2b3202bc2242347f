"""OpenCLIP's models with two towers, `CLIP` and `CustomTextCLIP`, as a `vitkit.models.CLIP`, and back.

The names of the tensors tell which of the two it is. A tensor without a rule keeps its name, so that
`vitkit.convert.importer.build_bundle` lists it.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitkit.convert.config_slots import read_part
from vitkit.convert.openclip import config as image_config
from vitkit.convert.openclip import tensors as openclip_tensors
from vitkit.convert.openclip import text_tower, timm_trunk
from vitkit.convert.openclip.config import select_below
from vitkit.models import CLIP
from vitkit.nn import Attend

# Prefixes of the text tower of `CLIP`; that of `CustomTextCLIP` is below "text.".
TEXT_PREFIXES = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")
# Scalars of OpenCLIP and transformers -> scalars of vitkit.
SCALARS = {"logit_scale": "log_scale", "logit_bias": "bias"}
# SigLIP's scale is 117 in the published weights and not clamped in training: a bound far above has no effect.
MAX_SCALE = 1000.0


def has_text_tower(state: Mapping[str, Tensor]) -> bool:
    """Return whether a state holds more than an image tower: a text tower, or a decoder of captions."""
    return any(name.startswith(("text.", "text_decoder.", *TEXT_PREFIXES)) for name in state)


def read_config(state: Mapping[str, Tensor], openclip_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the CLIP that a model_cfg describes.

    Raises: ValueError that lists every setting of both towers that vitkit's models do not support.
    """
    problems: list[str] = []
    towers: dict[str, Any] = {}
    if any(name.startswith("text_decoder.") for name in state) or openclip_config.get("multimodal_cfg"):
        problems.append("the model has a decoder of captions, as CoCa")
    for name, read_tower in (
        ("image", lambda: image_config.read_config(state, openclip_config)),
        ("text", lambda: text_tower.read_config(openclip_config)),
    ):
        try:
            towers[name] = read_tower()
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return make_clip_config(towers["image"], towers["text"], bias="logit_bias" in state)


def make_clip_config(image: Mapping[str, Any], text: Mapping[str, Any], *, bias: bool) -> dict[str, Any]:
    """Return the config of a CLIP. Args: bias: whether logits have a bias, as in SigLIP."""
    scalars = {"scale": 10.0, "most": MAX_SCALE, "bias": -10.0} if bias else {}
    return {"class_path": "vitkit.models.CLIP", "init_args": {"image": image, "text": text, **scalars}}


def to_vitkit(state: Mapping[str, Tensor], openclip_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of the CLIP whose config is `read_config(state, openclip_config)`."""
    custom = any(name.startswith("text.") for name in state)
    text = select_below(state, "text.") if custom else {n: t for n, t in state.items() if n.startswith(TEXT_PREFIXES)}
    image = openclip_tensors.to_vitkit({n: t for n, t in state.items() if n.startswith("visual.")}, openclip_config)
    known = (*SCALARS, *(f"text.{name}" if custom else name for name in text))
    rest = {n: t for n, t in state.items() if not n.startswith("visual.") and n not in known}
    scalars = {ours: state[theirs].reshape(()) for theirs, ours in SCALARS.items() if theirs in state}
    return {**add_prefix("image.", image), **add_prefix("text.", text_tower.to_vitkit(text)), **scalars, **rest}


def add_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model_cfg of a CLIP.

    Raises: ValueError that lists every setting that OpenCLIP does not support.
    """
    args = get_clip_args(config)
    text, act = text_tower.write_config(args["text"])
    if has_timm_trunk(args["image"]):
        openclip_config = {**timm_trunk.write_config(args["image"]), "custom_text": True, "quick_gelu": act == "quick"}
    else:
        openclip_config = image_config.write_config(args["image"])
        if openclip_config["quick_gelu"] != (act == "quick"):
            raise ValueError("both towers must have QuickGELU for OpenCLIP, or none, got one with it")
    if args["bias"] is not None:
        openclip_config["init_logit_bias"] = args["bias"]
    return {**openclip_config, "text_cfg": text}


def get_clip_args(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a CLIP. Raises: ValueError for the config of another model."""
    kind, args = read_part(config)
    if kind is not CLIP:
        raise ValueError(f"config must be of a CLIP, got {kind.__name__}")
    return args


def has_timm_trunk(image: Mapping[str, Any]) -> bool:
    """Return whether an image tower pools by attention. OpenCLIP's own cannot; it is a model of timm there."""
    return read_part(read_part(image).args["pool"]).kind is Attend


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the model whose model_cfg is `write_config(config)`.

    Raises: ValueError that lists every setting that OpenCLIP does not support.
    """
    args = get_clip_args(config)
    custom = has_timm_trunk(args["image"])  # then the model is a CustomTextCLIP
    image = (timm_trunk if custom else openclip_tensors).from_vitkit(select_below(state, "image."), args["image"])
    text = text_tower.from_vitkit(select_below(state, "text."), args["text"])
    scalars = {theirs: state[ours] for theirs, ours in SCALARS.items() if ours in state}
    tensors = {**image, **add_prefix("text." if custom else "", text), **scalars}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
