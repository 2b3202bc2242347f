"""A CLIP of vitkit as a config.json of Hugging Face: CLIPModel or SiglipModel, and what neither can hold."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import parts
from vitkit.convert.hf_clip_config import ARGMAX
from vitkit.convert.hf_layout import act
from vitkit.convert.openclip_text import checks
from vitkit.convert.openclip_whole import clip_args
from vitkit.convert.parts import Trunk, part, trunk
from vitkit.nn import Attend, EndOfText, First, Last, Learned


class Layout(NamedTuple):
    """Args: sigmoid: whether it is a SiglipModel; widths: of the encoder of each tower."""

    sigmoid: bool
    image: Mapping[str, Any]
    text: Mapping[str, Any]
    bodies: Mapping[str, Trunk]

    @property
    def widths(self) -> dict[str, int]:
        return {tower: body.dim for tower, body in self.bodies.items()}


def told(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a CLIP.

    Raises: ValueError with everything that no class there can hold.
    """
    into = layout(config)
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
        end = part(text["pool"]).args["end"]
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


def layout(config: Mapping[str, Any]) -> Layout:
    """Raises: ValueError with everything that no class there can hold."""
    args = clip_args(config)
    image, text = part(args["image"]).args, part(args["text"]).args
    bodies = {"image": trunk(image["encoder"]), "text": trunk(text["encoder"], causal=True)}
    into = Layout(part(image["pool"]).kind is Attend, image, text, bodies)
    name = "SiglipModel" if into.sigmoid else "CLIPModel"
    shared = {**checks(text, bodies["text"]), **imaged(into)}
    own = sigmoid(into) if into.sigmoid else softmax(into, args["bias"])
    reasons = [f"{problem} ({tower})" for tower, body in bodies.items() for problem in body.problems]
    parts.refuse(f"in {name} this model", [*reasons, *parts.failing({**shared, **own})])
    return into


def imaged(into: Layout) -> dict[str, object]:
    """Rules of both, and whether they hold."""
    image = into.image
    (height, width), (rows, columns) = image["image_size"], image["patch_size"]
    bodies = into.bodies.values()
    return {
        f"images and patches must be square, got {height, width}, {rows, columns}": height == width and rows == columns,
        "table must be Learned in the image tower": part(image["table"]).kind is Learned,
        "final_norm must be True in the image tower": into.bodies["image"].final_norm,
        "encoders must have MLPs, with an act that transformers knows": all(b.act and act(b) for b in bodies),
        "encoders must be without a layer scale": all(body.scale is None for body in bodies),
    }


def softmax(into: Layout, bias: float | None) -> dict[str, object]:
    """Rules of CLIPModel."""
    image, text, body = into.image, into.text, into.bodies["image"]
    before, pool = part(image["pre_norm"]), part(text["pool"])
    end = pool.args.get("end")
    return {
        f"prefix must be 1, got prefix={image['prefix']}": image["prefix"] == 1,
        f"pool must be First in the image tower, got {part(image['pool']).kind.__name__}": (
            part(image["pool"]).kind is First
        ),
        "pre_norm must be LayerNorm with the encoder's epsilon": (
            parts.is_layer_norm(before) and before.args["eps"] == body.eps
        ),
        "head must be torch.nn.Linear in the image tower": parts.is_linear(part(image["head"])),
        f"pool must be EndOfText in the text tower, with an end that is not {ARGMAX}": (
            pool.kind is EndOfText and end != ARGMAX
        ),
        f"bias must be left out, got bias={bias}": bias is None,
    }


def sigmoid(into: Layout) -> dict[str, object]:
    """Rules of SiglipModel."""
    image, text, body = into.image, into.text, into.bodies["image"]
    pool = part(image["pool"]).args
    norm, mlp = part(pool["norm"]), part(pool["mlp"])
    alike = pool["heads"] == body.heads and int(body.dim * mlp.args.get("ratio", 0)) == body.hidden
    return {
        f"prefix must be 0, got prefix={image['prefix']}": image["prefix"] == 0,
        "pre_norm must be left out": part(image["pre_norm"]).kind is nn.Identity,
        f"outputs must be 0 in the image tower, got outputs={image['outputs']}": not image["outputs"],
        "pool must have the heads, the norm and the MLP of the blocks": (
            alike
            and parts.is_layer_norm(norm)
            and norm.args["eps"] == body.eps
            and "act" in mlp.args
            and part(mlp.args["act"]) == body.act
        ),
        "pool must be Last in the text tower": part(text["pool"]).kind is Last,
        "the text tower must not be causal": not into.bodies["text"].causal,
    }
