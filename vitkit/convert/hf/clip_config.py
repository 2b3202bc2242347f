"""Hugging Face's config.json for CLIP and SigLIP, of both towers or of the image tower, as a config of vitkit.

Dropout is not read. transformers knows square images of square patches only.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Trunk, read_part, read_trunk
from vitkit.convert.hf.vit_config import ACTS, act
from vitkit.convert.openclip.text_tower import checks, make_text_config
from vitkit.convert.openclip.two_towers import clip_args, make_clip_config
from vitkit.nn import Attend, EndOfText, First, Last, Learned

# What a config.json without the name means: the defaults of the classes there (transformers 5.24, unchanged since 4.x).
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
    """Two kinds of towers. Args: sigmoid: SigLIP, whose image tower pools by attention and whose text by its end."""

    vision: Mapping[str, Any]
    text: Mapping[str, Any]
    sigmoid: bool


OF_CLIP, OF_SIGLIP = Family(VISION, TEXT, False), Family(SIGLIP_VISION, SIGLIP_TEXT, True)


FAMILIES = {
    "clip": OF_CLIP,
    "clip_vision_model": OF_CLIP,
    "siglip": OF_SIGLIP,
    "siglip_vision_model": OF_SIGLIP,
}


# The outputs of each class there, where the config speaks of an image tower alone.
PROJECTED = {"CLIPVisionModel": False, "CLIPVisionModelWithProjection": True, "SiglipVisionModel": False}


ARGMAX = 2  # as end of text in configs before transformers 4.31, it stands for the greatest id in the text


class Settings(NamedTuple):
    """Args: text: none where only the image tower is described; outputs: 0 without a projection."""

    family: Family
    vision: Mapping[str, Any]
    text: Mapping[str, Any] | None
    outputs: int


def read_config(told: Mapping[str, Any], *, image: bool = False) -> dict[str, Any]:
    """The config of the CLIP that a config.json speaks of, or of a ViT for an image tower.

    Args: image: only that, of a whole model too.
    Raises: ValueError with everything that vitkit's models cannot hold.
    """
    family, vision, text, outputs = parse_clip_config(told)
    tower_of_images = described(family, vision, outputs)
    if image or text is None:
        return tower_of_images
    outputs = text.get("projection_size") or text["hidden_size"] if family.sigmoid else outputs
    body = encoder(text, causal=not family.sigmoid)
    end = None if family.sigmoid else text["eos_token_id"]
    end = text["vocab_size"] - 1 if end == ARGMAX else end
    words = make_text_config(
        body, text["vocab_size"], text["max_position_embeddings"], outputs, end=end, bias=family.sigmoid
    )
    return make_clip_config(tower_of_images, words, bias=family.sigmoid)


def described(family: Family, vision: Mapping[str, Any], outputs: int) -> dict[str, Any]:
    """The config of the ViT."""
    body = encoder(vision, causal=False)
    norm = body["init_args"]["norm"]
    args: dict[str, Any] = {
        "encoder": body,
        "image_size": [*config_slots.parse_size(vision["image_size"], "image_size")],
        "patch_size": [*config_slots.parse_size(vision["patch_size"], "patch_size")],
        "outputs": outputs,
        "channels": vision["num_channels"],
        "table": {"class_path": "vitkit.nn.Learned", "init_args": {"resample": "vitkit.nn.bicubic"}},
    }
    if family.sigmoid:
        heads, mlp = vision["num_attention_heads"], body["init_args"]["mlp"]
        pool = {"class_path": "vitkit.nn.Attend", "init_args": {"heads": heads, "norm": norm, "mlp": mlp}}
        args |= {"prefix": 0, "pool": pool}
    else:
        args |= {"pre_norm": norm, "pool": {"class_path": "vitkit.nn.First"}}
    if outputs:
        args["head"] = config_slots.PROJECTION
    return {"class_path": "vitkit.models.ViT", "init_args": args}


def encoder(values: Mapping[str, Any], *, causal: bool) -> dict[str, Any]:
    dim = values["hidden_size"]
    args = {"ratio": config_slots.compute_ratio(values["intermediate_size"], dim), "act": ACTS[values["hidden_act"]]}
    mlp = {"class_path": "vitkit.nn.MLP", "init_args": args}
    depth, heads = values["num_hidden_layers"], values["num_attention_heads"]
    return config_slots.make_encoder_config(dim, depth, heads, eps=values["layer_norm_eps"], mlp=mlp, causal=causal)


def parse_clip_config(told: Mapping[str, Any]) -> Settings:
    """Raises: ValueError with everything that vitkit's models cannot hold."""
    kind = str(told.get("model_type"))
    if kind not in FAMILIES:
        raise ValueError(f"model_type must be one of {', '.join(FAMILIES)}, got model_type={kind:.80}")
    family, alone = FAMILIES[kind], kind.endswith("vision_model")
    known = [*(() if alone else ("SiglipModel" if family.sigmoid else "CLIPModel",)), *PROJECTED]
    known = [name for name in known if name.startswith("Siglip") == family.sigmoid]
    named = told.get("architectures") or ["none"]
    if not (isinstance(named, list) and len(named) == 1 and named[0] in known):
        config_slots.refuse_problems(
            "config.json", [f"architectures must be one of {', '.join(known)}, got {named!r:.80}"]
        )
    both = named[0] not in PROJECTED  # a config of both towers may lie beside one of them
    inner = {name: told if alone else told.get(f"{name}_config") or {} for name in ("vision", "text")}
    if wrong := [f"{name}_config must hold names and values" for name in inner if not isinstance(inner[name], Mapping)]:
        config_slots.refuse_problems("config.json", wrong)
    vision, text = {**family.vision, **inner["vision"]}, {**family.text, **inner["text"]}
    reasons = [*problems(vision, family.vision, "vision"), *imaged(vision)]
    reasons += problems(text, family.text, "text") if both else []
    size = (told if both else vision).get("projection_dim", 512)
    if type(size) is not int or size < 1:
        reasons.append(f"projection_dim must be a whole number above 0, got projection_dim={size!r:.80}")
    config_slots.refuse_problems("config.json", reasons)
    projected = PROJECTED.get(named[0], not family.sigmoid)
    return Settings(family, vision, text if both else None, size if projected else 0)


def problems(values: Mapping[str, Any], like: Mapping[str, Any], tower: str) -> list[str]:
    """Of a tower."""
    sizes = ("image_size", "patch_size")
    if wrong := config_slots.list_type_errors(
        values, {name: value for name, value in like.items() if name not in sizes}
    ):
        return [f"{rule} in {tower}_config" for rule in wrong]
    act, dim, heads = values["hidden_act"], values["hidden_size"], values["num_attention_heads"]
    return config_slots.list_failures(
        {
            f"hidden_act must be one of {', '.join(ACTS)}, got {act} in {tower}_config": act in ACTS,
            f"num_attention_heads must divide hidden_size, got {heads} and {dim} in {tower}_config": dim % heads == 0,
            "vision_use_head must be true, got false": values.get("vision_use_head", True),
        }
    )


def imaged(vision: Mapping[str, Any]) -> list[str]:
    """Of its pictures."""
    try:
        (rows, columns), patch = (
            config_slots.compute_grid(vision["image_size"], vision["patch_size"]),
            vision["patch_size"],
        )
        down, across = config_slots.parse_size(patch, "patch_size")
    except ValueError as error:
        return [str(error)]
    square = rows == columns and down == across
    return [] if square else [f"images and patches must be square, got {vision['image_size']}, {vision['patch_size']}"]


class CLIPArguments(NamedTuple):
    """Args: sigmoid: whether it is a SiglipModel; widths: of the encoder of each tower."""

    sigmoid: bool
    image: Mapping[str, Any]
    text: Mapping[str, Any]
    bodies: Mapping[str, Trunk]

    @property
    def widths(self) -> dict[str, int]:
        return {tower: body.dim for tower, body in self.bodies.items()}


def write_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a CLIP.

    Raises: ValueError with everything that no class there can hold.
    """
    into = read_clip_arguments(config)
    image, text = into.image, into.text
    kind = "siglip" if into.sigmoid else "clip"
    vision = {
        "model_type": f"{kind}_vision_model",
        **sizes(into.bodies["image"]),
        "image_size": image["image_size"][0],
        "patch_size": image["patch_size"][0],
        "num_channels": image["channels"],
    }
    words = {
        "model_type": f"{kind}_text_model",
        **sizes(into.bodies["text"]),
        "vocab_size": text["vocabulary"],
        "max_position_embeddings": text["context"],
    }
    outputs = text["outputs"] or into.widths["text"]
    if into.sigmoid:
        more, words["projection_size"] = {}, outputs
    else:
        end = read_part(text["pool"]).args["end"]
        words |= {"eos_token_id": end, "bos_token_id": max(end - 1, 0), "projection_dim": outputs}
        more, vision["projection_dim"] = {"projection_dim": outputs}, outputs
    names = {"architectures": ["SiglipModel" if into.sigmoid else "CLIPModel"], "model_type": kind}
    return {**names, **more, "vision_config": vision, "text_config": words}


def sizes(body: Trunk) -> dict[str, Any]:
    return {
        "hidden_size": body.dim,
        "intermediate_size": body.hidden,
        "num_hidden_layers": body.depth,
        "num_attention_heads": body.heads,
        "hidden_act": act(body),
        "layer_norm_eps": body.eps,
    }


def read_clip_arguments(config: Mapping[str, Any]) -> CLIPArguments:
    """Raises: ValueError with everything that no class there can hold."""
    args = clip_args(config)
    image, text = read_part(args["image"]).args, read_part(args["text"]).args
    bodies = {"image": read_trunk(image["encoder"]), "text": read_trunk(text["encoder"], causal=True)}
    into = CLIPArguments(read_part(image["pool"]).kind is Attend, image, text, bodies)
    name = "SiglipModel" if into.sigmoid else "CLIPModel"
    shared = {**checks(text, bodies["text"]), **image_checks(into)}
    own = sigmoid(into) if into.sigmoid else softmax(into, args["bias"])
    reasons = [f"{problem} ({tower})" for tower, body in bodies.items() for problem in body.problems]
    config_slots.refuse_problems(f"in {name} this model", [*reasons, *config_slots.list_failures({**shared, **own})])
    return into


def image_checks(into: CLIPArguments) -> dict[str, object]:
    """Rules of both, and whether they hold."""
    image = into.image
    (height, width), (rows, columns) = image["image_size"], image["patch_size"]
    bodies = into.bodies.values()
    return {
        f"images and patches must be square, got {height, width}, {rows, columns}": height == width and rows == columns,
        "table must be Learned in the image tower": read_part(image["table"]).kind is Learned,
        "final_norm must be True in the image tower": into.bodies["image"].final_norm,
        "encoders must have MLPs, with an act that transformers knows": all(b.act and act(b) for b in bodies),
        "encoders must be without a layer scale": all(body.scale is None for body in bodies),
    }


def softmax(into: CLIPArguments, bias: float | None) -> dict[str, object]:
    """Rules of CLIPModel."""
    image, text, body = into.image, into.text, into.bodies["image"]
    before, pool = read_part(image["pre_norm"]), read_part(text["pool"])
    end = pool.args.get("end")
    return {
        f"prefix must be 1, got prefix={image['prefix']}": image["prefix"] == 1,
        f"pool must be First in the image tower, got {read_part(image['pool']).kind.__name__}": (
            read_part(image["pool"]).kind is First
        ),
        "pre_norm must be LayerNorm with the encoder's epsilon": (
            config_slots.is_layer_norm(before) and before.args["eps"] == body.eps
        ),
        "head must be torch.nn.Linear in the image tower": config_slots.is_linear(read_part(image["head"])),
        f"pool must be EndOfText in the text tower, with an end that is not {ARGMAX}": (
            pool.kind is EndOfText and end != ARGMAX
        ),
        f"bias must be left out, got bias={bias}": bias is None,
    }


def sigmoid(into: CLIPArguments) -> dict[str, object]:
    """Rules of SiglipModel."""
    image, text, body = into.image, into.text, into.bodies["image"]
    pool = read_part(image["pool"]).args
    norm, mlp = read_part(pool["norm"]), read_part(pool["mlp"])
    alike = pool["heads"] == body.heads and int(body.dim * mlp.args.get("ratio", 0)) == body.hidden
    return {
        f"prefix must be 0, got prefix={image['prefix']}": image["prefix"] == 0,
        "pre_norm must be left out": read_part(image["pre_norm"]).kind is nn.Identity,
        f"outputs must be 0 in the image tower, got outputs={image['outputs']}": not image["outputs"],
        "pool must have the heads, the norm and the MLP of the blocks": (
            alike
            and config_slots.is_layer_norm(norm)
            and norm.args["eps"] == body.eps
            and "act" in mlp.args
            and read_part(mlp.args["act"]) == body.act
        ),
        "pool must be Last in the text tower": read_part(text["pool"]).kind is Last,
        "the text tower must not be causal": not into.bodies["text"].causal,
    }
