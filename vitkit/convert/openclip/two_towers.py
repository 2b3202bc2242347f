"""OpenCLIP's two towers, `CLIP` and `CustomTextCLIP`, as a `vitkit.models.CLIP`, and back.

Which of the two it is, is read from the names of its tensors. What has no rule keeps its name, so that
`vitkit.convert.importer.build_bundle` lists it.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitkit.convert.config_slots import read_part
from vitkit.convert.openclip import config as openclip_config
from vitkit.convert.openclip import tensors as openclip_tensors
from vitkit.convert.openclip import text_tower, timm_trunk
from vitkit.convert.openclip.config import within
from vitkit.models import CLIP
from vitkit.nn import Attend

# `CLIP` has its text tower beside the image tower, `CustomTextCLIP` below "text.".
BESIDE = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection")
SCALARS = {"logit_scale": "log_scale", "logit_bias": "bias"}
# SigLIP's scale is not clamped in training, and 117 in the published weights: far above is no bound.
UNBOUND = 1000.0


def is_whole(state: Mapping[str, Tensor]) -> bool:
    """Whether there is more than an image tower."""
    return any(name.startswith(("text.", "text_decoder.", *BESIDE)) for name in state)


def read_config(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the CLIP. Args: told: the model's config.

    Raises: ValueError with everything that vitkit's models cannot hold, of both towers.
    """
    reasons: list[str] = []
    towers: dict[str, Any] = {}
    if any(name.startswith("text_decoder.") for name in state) or told.get("multimodal_cfg"):
        reasons.append("a decoder of captions is held, as CoCa has one")
    for name, tower in (
        ("image", lambda: openclip_config.read_config(state, told)),
        ("text", lambda: text_tower.read_config(told)),
    ):
        try:
            towers[name] = tower()
        except ValueError as error:
            reasons.append(str(error))
    if reasons:
        raise ValueError("; ".join(reasons))
    return make_clip_config(towers["image"], towers["text"], bias="logit_bias" in state)


def make_clip_config(image: Mapping[str, Any], text: Mapping[str, Any], *, bias: bool) -> dict[str, Any]:
    """The config of a CLIP. Args: bias: whether it has one, as SigLIP."""
    scalars = {"scale": 10.0, "most": UNBOUND, "bias": -10.0} if bias else {}
    return {"class_path": "vitkit.models.CLIP", "init_args": {"image": image, "text": text, **scalars}}


def to_vitkit(state: Mapping[str, Tensor], told: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state of what `read_config(state, told)` is the config of."""
    custom = any(name.startswith("text.") for name in state)
    text = within(state, "text.") if custom else {n: t for n, t in state.items() if n.startswith(BESIDE)}
    image = openclip_tensors.to_vitkit({n: t for n, t in state.items() if n.startswith("visual.")}, told)
    known = (*SCALARS, *(f"text.{name}" if custom else name for name in text))
    rest = {n: t for n, t in state.items() if not n.startswith("visual.") and n not in known}
    scalars = {ours: state[theirs].reshape(()) for theirs, ours in SCALARS.items() if theirs in state}
    return {**below("image.", image), **below("text.", text_tower.to_vitkit(text)), **scalars, **rest}


def below(stem: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {stem + name: tensor for name, tensor in state.items()}


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config there.

    Raises: ValueError with everything that OpenCLIP cannot hold.
    """
    args = clip_args(config)
    text, act = text_tower.write_config(args["text"])
    if trunked(args["image"]):
        found = {**timm_trunk.write_config(args["image"]), "custom_text": True, "quick_gelu": act == "quick"}
    else:
        found = openclip_config.write_config(args["image"])
        if found["quick_gelu"] != (act == "quick"):
            raise ValueError("both towers must have QuickGELU for OpenCLIP, or none, got one with it")
    if args["bias"] is not None:
        found["init_logit_bias"] = args["bias"]
    return {**found, "text_cfg": text}


def clip_args(config: Mapping[str, Any]) -> Mapping[str, Any]:
    kind, args = read_part(config)
    if kind is not CLIP:
        raise ValueError(f"config must be of a CLIP, got {kind.__name__}")
    return args


def trunked(image: Mapping[str, Any]) -> bool:
    """OpenCLIP's own image tower pools by no query: that is timm's, with the text tower below "text."."""
    return read_part(read_part(image).args["pool"]).kind is Attend


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the model whose config is `write_config(config)`.

    Raises: ValueError with everything that OpenCLIP cannot hold.
    """
    args = clip_args(config)
    trunk = trunked(args["image"])
    image = (timm_trunk if trunk else openclip_tensors).from_vitkit(within(state, "image."), args["image"])
    text = text_tower.from_vitkit(within(state, "text."), args["text"])
    scalars = {theirs: state[ours] for theirs, ours in SCALARS.items() if ours in state}
    found = {**image, **below("text." if trunk else "", text), **scalars}
    return {name: tensor.contiguous() for name, tensor in found.items()}
