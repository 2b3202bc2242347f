"""OpenCLIP's text tower, of tokens and a Transformer of its own: its config and tensors as vitkit's, and back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Trunk, read_part, read_trunk
from vitkit.convert.openclip.config import EPS, acted, blocks, further
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.nn import EndOfText, Last, Learned

# What a text_cfg without the name means: the defaults of open_clip 3.3's CLIPTextCfg.
TEXT: Mapping[str, Any] = {
    "context_length": 77,
    "vocab_size": 49408,
    "width": 512,
    "heads": 8,
    "layers": 12,
    "mlp_ratio": 4.0,
    "ls_init_value": None,
    "embed_cls": False,
    "eos_id": 2,
    "no_causal_mask": False,
    "pool_type": "argmax",
    "proj_bias": False,
    "proj_type": "linear",
    "act_kwargs": None,
    "norm_kwargs": None,
    "block_type": None,
    "hf_model_name": None,
}
BLOCK, OURS = "transformer.resblocks.{i}.", "encoder.blocks.{i}."
BLOCKS = (
    Rule(f"{BLOCK}ln_1.{{x}}", f"{OURS}attn.norm.{{x}}"),
    Rule(f"{BLOCK}attn.in_proj_weight", f"{OURS}attn.f.qkv.weight"),
    Rule(f"{BLOCK}attn.in_proj_bias", f"{OURS}attn.f.qkv.bias"),
    Rule(f"{BLOCK}attn.out_proj.{{x}}", f"{OURS}attn.f.out.{{x}}"),
    Rule(f"{BLOCK}ls_1.gamma", f"{OURS}attn.scale"),
    Rule(f"{BLOCK}ln_2.{{x}}", f"{OURS}mlp.norm.{{x}}"),
    Rule(f"{BLOCK}mlp.c_fc.{{x}}", f"{OURS}mlp.f.up.{{x}}"),
    Rule(f"{BLOCK}mlp.c_proj.{{x}}", f"{OURS}mlp.f.down.{{x}}"),
    Rule(f"{BLOCK}ls_2.gamma", f"{OURS}mlp.scale"),
)
RULES = (
    *BLOCKS,
    Rule("token_embedding.weight", "embed.tokens.weight"),
    Rule("positional_embedding", "embed.table.weight"),
    Rule("ln_final.{x}", "encoder.norm.{x}"),
    Rule("text_projection.{x}", "head.{x}"),
)


def read_config(told: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the TextTower. Args: told: the model's config.

    Raises: ValueError with everything that vitkit's TextTower cannot hold.
    """
    text = {**TEXT, **told["text_cfg"]}
    config_slots.refuse_problems("the text tower of this model", problems(text, told))
    act = {"class_path": "torch.nn.GELU", "init_args": text["act_kwargs"] or {}}
    args = {"ratio": text["mlp_ratio"], "act": "vitkit.nn.QuickGELU" if told.get("quick_gelu") else act}
    encoder = config_slots.make_encoder_config(
        text["width"],
        text["layers"],
        text["heads"],
        eps=(text["norm_kwargs"] or {}).get("eps", EPS),
        mlp={"class_path": "vitkit.nn.MLP", "init_args": args},
        scale=text["ls_init_value"],
        causal=not text["no_causal_mask"],
    )
    return make_text_config(
        encoder,
        text["vocab_size"],
        text["context_length"],
        told["embed_dim"] if text["proj_type"] == "linear" else 0,
        end=end(text),
        bias=text["proj_bias"],
    )


def make_text_config(
    encoder: Mapping[str, Any], vocabulary: int, context: int, outputs: int, *, end: int | None, bias: bool
) -> dict[str, Any]:
    """The config of a TextTower. Args: end: the id that is pooled; None for the last."""
    pool = {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": end}}
    args = {"encoder": encoder, "vocabulary": vocabulary, "context": context, "outputs": outputs}
    args["pool"] = {"class_path": "vitkit.nn.Last"} if end is None else pool
    if outputs and not bias:
        args["head"] = config_slots.PROJECTION
    return {"class_path": "vitkit.models.TextTower", "init_args": args}


def end(text: Mapping[str, Any]) -> int | None:
    """The id that is pooled. The greatest in each text, "argmax", is the last of the vocabulary."""
    return {"last": None, "argmax": text["vocab_size"] - 1, "eos": text["eos_id"]}[text["pool_type"]]


def problems(text: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    if text["hf_model_name"]:
        return [f"it is one of transformers, hf_model_name={text['hf_model_name']!r:.80}"]
    if wrong := config_slots.list_type_errors(text, TEXT):
        return wrong
    pool = text["pool_type"]
    return config_slots.list_failures(
        {
            "embed_cls must be left out: it is CoCa's": not text["embed_cls"],
            "multimodal_cfg must be left out: it is CoCa's": not told.get("multimodal_cfg"),
            f"pool_type must be argmax, eos or last, got pool_type={pool}": pool in ("argmax", "eos", "last"),
            f"pool_type must be last with no_causal_mask, got pool_type={pool}": (
                not text["no_causal_mask"] or pool not in ("argmax", "eos")
            ),
            f"proj_type must be linear or none, got proj_type={text['proj_type']}": (
                text["proj_type"] in ("linear", "none")
            ),
            **blocks(text, told),
            f"heads must divide width, got {text['heads']} and {text['width']}": text["width"] % text["heads"] == 0,
        }
    )


def to_vitkit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of what `read_config` is the config of."""
    held = rename(state, RULES)
    if "text_projection" in held:
        held["head.weight"] = held.pop("text_projection").T
    return held


def write_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Its text_cfg, and the activation: gelu, tanh or quick, the last of which is said of the whole model.

    Raises: ValueError with everything that no text tower there can hold.
    """
    args = read_part(config).args
    body, pool = read_trunk(args["encoder"], causal=True), read_part(args["pool"])
    act, head = acted(body), read_part(args["head"])
    config_slots.refuse_problems(
        "in OpenCLIP's text tower this model", [*body.problems, *config_slots.list_failures(checks(args, body))]
    )
    text: dict[str, Any] = {
        "context_length": args["context"],
        "vocab_size": args["vocabulary"],
        "width": body.dim,
        "heads": body.heads,
        "layers": body.depth,
        "mlp_ratio": config_slots.compute_ratio(body.hidden, body.dim),
        "no_causal_mask": not body.causal,
        "proj_type": "linear" if args["outputs"] else "none",
        "proj_bias": bool(args["outputs"] and head.args["bias"]),
    }
    if pool.kind is Last:
        text["pool_type"] = "last"
    else:
        last = pool.args["end"] == args["vocabulary"] - 1
        text |= {"pool_type": "argmax"} if last else {"pool_type": "eos", "eos_id": pool.args["end"]}
    return text | further(body), act


def checks(args: Mapping[str, Any], body: Trunk) -> dict[str, object]:
    """Rules of the text towers of other libraries, and whether they hold."""
    pool = read_part(args["pool"]).kind
    return {
        f"pool must be EndOfText or Last, got {pool.__name__}": pool in (EndOfText, Last),
        "table must be Learned": read_part(args["table"]).kind is Learned,
        "head must be torch.nn.Linear": config_slots.is_linear(read_part(args["head"])),
        "final_norm must be True": body.final_norm,
        "mlp must be MLP with torch.nn.GELU or vitkit.nn.QuickGELU": acted(body) != "",
    }


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of the text tower, by the names of CustomTextCLIP's below `text.`."""
    theirs = rename(state, invert_rules(RULES))
    args = read_part(config).args
    if args["outputs"] and not read_part(args["head"]).args["bias"]:
        theirs["text_projection"] = theirs.pop("text_projection.weight").T
    return theirs
