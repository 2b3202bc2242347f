"""Hugging Face's config.json of CLIP and SigLIP, of both towers or of the image tower, as a config of vitkit, and back.

Dropout is not read. In transformers images and patches are square.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Trunk, read_part, read_trunk
from vitkit.convert.hf.vit_config import ACTS, find_hf_act
from vitkit.convert.openclip.text_tower import make_text_checks, make_text_config
from vitkit.convert.openclip.two_towers import get_clip_args, make_clip_config
from vitkit.nn import Attend, EndOfText, First, Last, Learned

# Values of names that a config.json leaves out: the defaults of the classes of transformers 5.24, unchanged since 4.x.
VISION: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
TEXT: Mapping[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
SIGLIP = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
SIGLIP_VISION = VISION | SIGLIP | {"patch_size": 16, "vision_use_head": True}
SIGLIP_TEXT = TEXT | SIGLIP | {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
}  # fmt: skip


class Family(NamedTuple):
    """The default values of both towers.

    Args: sigmoid: True for SigLIP, whose image tower pools by attention and whose text tower reads the last token.
    """

    vision: Mapping[str, Any]
    text: Mapping[str, Any]
    sigmoid: bool


CLIP_FAMILY, SIGLIP_FAMILY = Family(VISION, TEXT, False), Family(SIGLIP_VISION, SIGLIP_TEXT, True)
# model_type -> family.
FAMILIES = {
    "clip": CLIP_FAMILY,
    "clip_vision_model": CLIP_FAMILY,
    "siglip": SIGLIP_FAMILY,
    "siglip_vision_model": SIGLIP_FAMILY,
}
# Classes of an image tower alone -> whether they have a projection.
HAS_PROJECTION = {"CLIPVisionModel": False, "CLIPVisionModelWithProjection": True, "SiglipVisionModel": False}
ARGMAX = 2  # an eos_token_id of configs before transformers 4.31, for the greatest id in the text


class CLIPValues(NamedTuple):
    """The values of a config.json with defaults.

    Args: text: None where only the image tower is described; outputs: the width of the projection, 0 without one.
    """

    family: Family
    vision: Mapping[str, Any]
    text: Mapping[str, Any] | None
    outputs: int


def read_config(hf_config: Mapping[str, Any], *, image_only: bool = False) -> dict[str, Any]:
    """Return the config of the CLIP that a config.json describes, or of a ViT for an image tower.

    Args: image_only: read the image tower alone, also of a model with both.
    Raises: ValueError that lists every setting that vitkit's models do not support.
    """
    family, vision, text, outputs = parse_clip_config(hf_config)
    image_config = make_image_config(family, vision, outputs)
    if image_only or text is None:
        return image_config
    outputs = text.get("projection_size") or text["hidden_size"] if family.sigmoid else outputs
    encoder = make_tower_encoder(text, causal=not family.sigmoid)
    end = None if family.sigmoid else text["eos_token_id"]
    end = text["vocab_size"] - 1 if end == ARGMAX else end
    text_config = make_text_config(
        encoder, text["vocab_size"], text["max_position_embeddings"], outputs, end=end, bias=family.sigmoid
    )
    return make_clip_config(image_config, text_config, bias=family.sigmoid)


def make_image_config(family: Family, vision: Mapping[str, Any], outputs: int) -> dict[str, Any]:
    encoder = make_tower_encoder(vision, causal=False)
    norm = encoder["init_args"]["norm"]
    args: dict[str, Any] = {
        "encoder": encoder,
        "image_size": [*config_slots.parse_size(vision["image_size"], "image_size")],
        "patch_size": [*config_slots.parse_size(vision["patch_size"], "patch_size")],
        "outputs": outputs,
        "channels": vision["num_channels"],
        "table": {"class_path": "vitkit.nn.Learned", "init_args": {"resample": "vitkit.nn.bicubic"}},
    }
    if family.sigmoid:
        heads, mlp = vision["num_attention_heads"], encoder["init_args"]["mlp"]
        pool = {"class_path": "vitkit.nn.Attend", "init_args": {"heads": heads, "norm": norm, "mlp": mlp}}
        args |= {"prefix": 0, "pool": pool}
    else:
        args |= {"pre_norm": norm, "pool": {"class_path": "vitkit.nn.First"}}
    if outputs:
        args["head"] = config_slots.PROJECTION
    return {"class_path": "vitkit.models.ViT", "init_args": args}


def make_tower_encoder(values: Mapping[str, Any], *, causal: bool) -> dict[str, Any]:
    dim = values["hidden_size"]
    args = {
        "ratio": config_slots.compute_mlp_ratio(values["intermediate_size"], dim),
        "act": ACTS[values["hidden_act"]],
    }
    mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    depth, heads = values["num_hidden_layers"], values["num_attention_heads"]
    return config_slots.make_encoder_config(dim, depth, heads, eps=values["layer_norm_eps"], mlp=mlp, causal=causal)


def parse_clip_config(hf_config: Mapping[str, Any]) -> CLIPValues:
    """Return all values with defaults.

    Raises: ValueError that lists every setting that vitkit's models do not support.
    """
    kind = str(hf_config.get("model_type"))
    if kind not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)}, got model_type={kind:.80}")
    family, alone = FAMILIES[kind], kind.endswith("vision_model")
    known = [*(() if alone else ("SiglipModel" if family.sigmoid else "CLIPModel",)), *HAS_PROJECTION]
    known = [name for name in known if name.startswith("Siglip") == family.sigmoid]
    names = hf_config.get("architectures") or ["none"]
    if not (isinstance(names, list) and len(names) == 1 and names[0] in known):
        config_slots.refuse_problems(
            "config.json", [f"architectures must be one of {', '.join(known)}, got {names!r:.80}"]
        )
    both = names[0] not in HAS_PROJECTION  # a config of both towers may lie beside the weights of one
    inner = {name: hf_config if alone else hf_config.get(f"{name}_config") or {} for name in ("vision", "text")}
    problems = [f"{name}_config must hold names and values" for name in inner if not isinstance(inner[name], Mapping)]
    config_slots.refuse_problems("config.json", problems)
    vision, text = {**family.vision, **inner["vision"]}, {**family.text, **inner["text"]}
    problems = [*find_tower_problems(vision, family.vision, "vision"), *find_size_problems(vision)]
    problems += find_tower_problems(text, family.text, "text") if both else []
    size = (hf_config if both else vision).get("projection_dim", 512)
    if type(size) is not int or size < 1:
        problems.append(f"projection_dim must be a whole number above 0, got projection_dim={size!r:.80}")
    config_slots.refuse_problems("config.json", problems)
    has_projection = HAS_PROJECTION.get(names[0], not family.sigmoid)
    return CLIPValues(family, vision, text if both else None, size if has_projection else 0)


def find_tower_problems(values: Mapping[str, Any], defaults: Mapping[str, Any], tower: str) -> list[str]:
    """Return a message for each setting but sizes that a tower of vitkit does not support; see `find_size_problems`."""
    sizes = ("image_size", "patch_size")
    defaults = {name: value for name, value in defaults.items() if name not in sizes}
    if problems := config_slots.list_type_errors(values, defaults):
        return [f"{problem} in {tower}_config" for problem in problems]
    act, dim, heads = values["hidden_act"], values["hidden_size"], values["num_attention_heads"]
    return config_slots.list_failures(
        {
            f"hidden_act must be one of {', '.join(ACTS)}, got {act} in {tower}_config": act in ACTS,
            f"num_attention_heads must divide hidden_size, got {heads} and {dim} in {tower}_config": dim % heads == 0,
            "vision_use_head must be true, got false": values.get("vision_use_head", True),
        }
    )


def find_size_problems(vision: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the sizes of images and patches."""
    try:
        rows, columns = config_slots.compute_grid(vision["image_size"], vision["patch_size"])
        height, width = config_slots.parse_size(vision["patch_size"], "patch_size")
    except ValueError as error:
        return [str(error)]
    square = rows == columns and height == width
    return [] if square else [f"images and patches must be square, got {vision['image_size']}, {vision['patch_size']}"]


class CLIPTarget(NamedTuple):
    """The class of transformers that a CLIP of vitkit is written as, with the CLIP's parts.

    Args: sigmoid: SiglipModel, else CLIPModel; image, text: the arguments of the towers; trunks: their encoders.
    """

    sigmoid: bool
    image: Mapping[str, Any]
    text: Mapping[str, Any]
    trunks: Mapping[str, Trunk]

    @property
    def widths(self) -> dict[str, int]:
        return {tower: trunk.dim for tower, trunk in self.trunks.items()}


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config.json of a CLIP.

    Raises: ValueError that lists every setting that no class of transformers supports.
    """
    target = choose_clip_target(config)
    image, text = target.image, target.text
    kind = "siglip" if target.sigmoid else "clip"
    vision_config = {
        "model_type": f"{kind}_vision_model",
        **make_trunk_values(target.trunks["image"]),
        "image_size": image["image_size"][0],
        "patch_size": image["patch_size"][0],
        "num_channels": image["channels"],
    }
    text_config = {
        "model_type": f"{kind}_text_model",
        **make_trunk_values(target.trunks["text"]),
        "vocab_size": text["vocabulary"],
        "max_position_embeddings": text["context"],
    }
    outputs = text["outputs"] or target.widths["text"]
    hf_config: dict[str, Any] = {
        "architectures": ["SiglipModel" if target.sigmoid else "CLIPModel"],
        "model_type": kind,
    }
    if target.sigmoid:
        text_config["projection_size"] = outputs
    else:
        end = read_part(text["pool"]).args["end"]
        text_config |= {"eos_token_id": end, "bos_token_id": max(end - 1, 0), "projection_dim": outputs}
        hf_config["projection_dim"] = vision_config["projection_dim"] = outputs
    return {**hf_config, "vision_config": vision_config, "text_config": text_config}


def make_trunk_values(trunk: Trunk) -> dict[str, Any]:
    return {
        "hidden_size": trunk.dim,
        "intermediate_size": trunk.hidden,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.heads,
        "hidden_act": find_hf_act(trunk),
        "layer_norm_eps": trunk.eps,
    }


def choose_clip_target(config: Mapping[str, Any]) -> CLIPTarget:
    """Return the class of transformers for the config of a CLIP.

    Raises: ValueError that lists every setting that no class of transformers supports.
    """
    args = get_clip_args(config)
    image, text = read_part(args["image"]).args, read_part(args["text"]).args
    trunks = {"image": read_trunk(image["encoder"]), "text": read_trunk(text["encoder"], causal=True)}
    target = CLIPTarget(read_part(image["pool"]).kind is Attend, image, text, trunks)
    name = "SiglipModel" if target.sigmoid else "CLIPModel"
    checks = {**make_text_checks(text, trunks["text"]), **make_image_checks(target)}
    checks |= make_siglip_checks(target) if target.sigmoid else make_clip_checks(target, args["bias"])
    problems = [f"{problem} ({tower})" for tower, trunk in trunks.items() for problem in trunk.problems]
    config_slots.refuse_problems(f"the export to {name}", [*problems, *config_slots.list_failures(checks)])
    return target


def make_image_checks(target: CLIPTarget) -> dict[str, object]:
    """Return the rules of both classes, and whether they hold."""
    image = target.image
    (height, width), (rows, columns) = image["image_size"], image["patch_size"]
    trunks = target.trunks.values()
    return {
        f"images and patches must be square, got {height, width}, {rows, columns}": height == width and rows == columns,
        "table must be Learned in the image tower": read_part(image["table"]).kind is Learned,
        "final_norm must be True in the image tower": target.trunks["image"].final_norm,
        "encoders must have MLPs, with an act that transformers knows": all(t.act and find_hf_act(t) for t in trunks),
        "encoders must be without a layer scale": all(trunk.scale is None for trunk in trunks),
    }


def make_clip_checks(target: CLIPTarget, bias: float | None) -> dict[str, object]:
    """Return the rules of CLIPModel, and whether they hold."""
    image, text, trunk = target.image, target.text, target.trunks["image"]
    pre_norm, pool = read_part(image["pre_norm"]), read_part(text["pool"])
    end = pool.args.get("end")
    return {
        f"prefix must be 1, got prefix={image['prefix']}": image["prefix"] == 1,
        f"pool must be First in the image tower, got {read_part(image['pool']).kind.__name__}": (
            read_part(image["pool"]).kind is First
        ),
        "pre_norm must be LayerNorm with the encoder's epsilon": (
            config_slots.is_layer_norm(pre_norm) and pre_norm.args["eps"] == trunk.eps
        ),
        "head must be torch.nn.Linear in the image tower": config_slots.is_linear(read_part(image["head"])),
        f"pool must be EndOfText in the text tower, with an end that is not {ARGMAX}": (
            pool.kind is EndOfText and end != ARGMAX
        ),
        f"bias must be left out, got bias={bias}": bias is None,
    }


def make_siglip_checks(target: CLIPTarget) -> dict[str, object]:
    """Return the rules of SiglipModel, and whether they hold."""
    image, text, trunk = target.image, target.text, target.trunks["image"]
    pool = read_part(image["pool"]).args
    norm, mlp = read_part(pool["norm"]), read_part(pool["mlp"])
    alike = pool["heads"] == trunk.heads and int(trunk.dim * mlp.args.get("ratio", 0)) == trunk.hidden
    return {
        f"prefix must be 0, got prefix={image['prefix']}": image["prefix"] == 0,
        "pre_norm must be left out": read_part(image["pre_norm"]).kind is nn.Identity,
        f"outputs must be 0 in the image tower, got outputs={image['outputs']}": not image["outputs"],
        "pool must have the heads, the norm and the MLP of the blocks": (
            alike
            and config_slots.is_layer_norm(norm)
            and norm.args["eps"] == trunk.eps
            and "act" in mlp.args
            and read_part(mlp.args["act"]) == trunk.act
        ),
        "pool must be Last in the text tower": read_part(text["pool"]).kind is Last,
        "the text tower must not be causal": not target.trunks["text"].causal,
    }
