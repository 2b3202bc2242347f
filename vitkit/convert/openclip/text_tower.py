"""OpenCLIP's own text tower: its config and tensors as those of a TextTower, and back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Trunk, read_part, read_trunk
from vitkit.convert.openclip.config import EPS, find_openclip_act, make_block_checks, make_block_options
from vitkit.convert.rules import Rule, invert_rules, rename
from vitkit.nn import EndOfText, Last, Learned

# Values of names that a text_cfg leaves out: the defaults of open_clip 3.3's CLIPTextCfg.
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


def read_config(openclip_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the TextTower of a model_cfg.

    Raises: ValueError that lists every setting that vitkit's TextTower does not support.
    """
    text = {**TEXT, **openclip_config["text_cfg"]}
    config_slots.refuse_problems("the text tower of this model", find_text_problems(text, openclip_config))
    act = {"class_path": "torch.nn.GELU", "init_args": text["act_kwargs"] or {}}
    args = {"ratio": text["mlp_ratio"], "act": "vitkit.nn.QuickGELU" if openclip_config.get("quick_gelu") else act}
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
        openclip_config["embed_dim"] if text["proj_type"] == "linear" else 0,
        end=get_end_id(text),
        bias=text["proj_bias"],
    )


def make_text_config(
    encoder: Mapping[str, Any], vocabulary: int, context: int, outputs: int, *, end: int | None, bias: bool
) -> dict[str, Any]:
    """Return the config of a TextTower.

    Args: end: the id of the token that is pooled, None for the last token; bias: of the projection.
    """
    end_of_text = {"class_path": "vitkit.nn.EndOfText", "init_args": {"end": end}}
    args = {"encoder": encoder, "vocabulary": vocabulary, "context": context, "outputs": outputs}
    args["pool"] = {"class_path": "vitkit.nn.Last"} if end is None else end_of_text
    if outputs and not bias:
        args["head"] = config_slots.PROJECTION
    return {"class_path": "vitkit.models.TextTower", "init_args": args}


def get_end_id(text: Mapping[str, Any]) -> int | None:
    """Return the id of the token that is pooled; for "argmax", the greatest id, that is the last of the vocabulary."""
    return {"last": None, "argmax": text["vocab_size"] - 1, "eos": text["eos_id"]}[text["pool_type"]]


def find_text_problems(text: Mapping[str, Any], openclip_config: Mapping[str, Any]) -> list[str]:
    """Return a message for each setting that a TextTower does not support."""
    if text["hf_model_name"]:
        return [f"it is a model of transformers, hf_model_name={text['hf_model_name']!r:.80}"]
    if problems := config_slots.list_type_errors(text, TEXT):
        return problems
    pool = text["pool_type"]
    return config_slots.list_failures(
        {
            "embed_cls must be left out: it is CoCa's": not text["embed_cls"],
            "multimodal_cfg must be left out: it is CoCa's": not openclip_config.get("multimodal_cfg"),
            f"pool_type must be argmax, eos or last, got pool_type={pool}": pool in ("argmax", "eos", "last"),
            f"pool_type must be last with no_causal_mask, got pool_type={pool}": (
                not text["no_causal_mask"] or pool not in ("argmax", "eos")
            ),
            f"proj_type must be linear or none, got proj_type={text['proj_type']}": (
                text["proj_type"] in ("linear", "none")
            ),
            **make_block_checks(text, openclip_config),
            f"heads must divide width, got {text['heads']} and {text['width']}": text["width"] % text["heads"] == 0,
        }
    )


def to_vitkit(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a TextTower."""
    tensors = rename(state, RULES)
    if "text_projection" in tensors:
        tensors["head.weight"] = tensors.pop("text_projection").T
    return tensors


def write_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the text_cfg of a TextTower, and its activation: gelu, tanh or quick, which is an option of the model_cfg.

    Raises: ValueError that lists every setting that no text tower of OpenCLIP supports.
    """
    args = read_part(config).args
    trunk, pool, head = read_trunk(args["encoder"], causal=True), read_part(args["pool"]), read_part(args["head"])
    problems = [*trunk.problems, *config_slots.list_failures(make_text_checks(args, trunk))]
    config_slots.refuse_problems("the export to OpenCLIP's text tower", problems)
    text: dict[str, Any] = {
        "context_length": args["context"],
        "vocab_size": args["vocabulary"],
        "width": trunk.dim,
        "heads": trunk.heads,
        "layers": trunk.depth,
        "mlp_ratio": config_slots.compute_mlp_ratio(trunk.hidden, trunk.dim),
        "no_causal_mask": not trunk.causal,
        "proj_type": "linear" if args["outputs"] else "none",
        "proj_bias": bool(args["outputs"] and head.args["bias"]),
    }
    if pool.kind is Last:
        text["pool_type"] = "last"
    else:
        last = pool.args["end"] == args["vocabulary"] - 1
        text |= {"pool_type": "argmax"} if last else {"pool_type": "eos", "eos_id": pool.args["end"]}
    return text | make_block_options(trunk), find_openclip_act(trunk)


def make_text_checks(args: Mapping[str, Any], trunk: Trunk) -> dict[str, object]:
    """Return the rules of the text towers of OpenCLIP and transformers, and whether they hold."""
    pool = read_part(args["pool"]).kind
    return {
        f"pool must be EndOfText or Last, got {pool.__name__}": pool in (EndOfText, Last),
        "table must be Learned": read_part(args["table"]).kind is Learned,
        "head must be torch.nn.Linear": config_slots.is_linear(read_part(args["head"])),
        "final_norm must be True": trunk.final_norm,
        "mlp must be MLP with torch.nn.GELU or vitkit.nn.QuickGELU": find_openclip_act(trunk) != "",
    }


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the text tower under the names that CustomTextCLIP has below `text.`."""
    tensors = rename(state, invert_rules(RULES))
    args = read_part(config).args
    if args["outputs"] and not read_part(args["head"]).args["bias"]:
        tensors["text_projection"] = tensors.pop("text_projection.weight").T
    return tensors
