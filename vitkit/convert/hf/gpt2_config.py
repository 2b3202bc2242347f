"""Hugging Face's config.json of GPT-2 as the config of a TextDecoder, and back. Dropout is not read."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Trunk, read_part, read_trunk
from vitkit.convert.hf import vit_config
from vitkit.convert.hf.text_decoder import (
    check_architectures,
    get_decoder_args,
    make_decoder_checks,
    make_decoder_config,
)
from vitkit.nn import Learned

# Values of names that a config.json leaves out: the defaults of transformers 5.24, unchanged since 4.x.
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
ACTS = {**vit_config.ACTS, "gelu_new": vit_config.ACTS["gelu_pytorch_tanh"]}


def read_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the TextDecoder that a config.json describes.

    Raises: ValueError that lists every setting that a TextDecoder does not support.
    """
    values = parse_gpt2_config(hf_config)
    dim, act = values["n_embd"], ACTS[values["activation_function"]]
    ratio = config_slots.compute_mlp_ratio(values["n_inner"] or 4 * dim, dim)
    encoder = config_slots.make_encoder_config(
        dim,
        values["n_layer"],
        values["n_head"],
        eps=values["layer_norm_epsilon"],
        mlp={"class_path": "vitkit.nn.MLP", "init_args": {"ratio": ratio, "act": act}},
        causal=True,
    )
    return make_decoder_config(
        encoder, values["vocab_size"], values["n_positions"], tied=values["tie_word_embeddings"], learned=True
    )


def parse_gpt2_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values with defaults. Raises: ValueError that lists every setting that is not supported."""
    check_architectures(hf_config, "GPT2LMHeadModel", "GPT2Model")
    values = {name: hf_config.get(name, default) for name, default in DEFAULTS.items()}
    config_slots.refuse_problems("config.json", config_slots.list_type_errors(values, DEFAULTS))
    dim, heads, hidden, act = (values[name] for name in ("n_embd", "n_head", "n_inner", "activation_function"))
    checks = {
        f"activation_function must be one of {', '.join(ACTS)}, got {act}": act in ACTS,
        f"n_head must divide n_embd, got {heads} and {dim}": dim % heads == 0,
        f"n_inner must be left out or a whole number above 0, got n_inner={hidden!r:.80}": (
            hidden is None or (type(hidden) is int and hidden > 0)
        ),
        "scale_attn_weights must be true": values["scale_attn_weights"],
        "scale_attn_by_inverse_layer_idx must be false": not values["scale_attn_by_inverse_layer_idx"],
        "add_cross_attention must be false": not values["add_cross_attention"],
    }
    config_slots.refuse_problems("config.json", config_slots.list_failures(checks))
    return values


class GPT2Target(NamedTuple):
    """A TextDecoder that GPT2LMHeadModel can hold: its arguments and its encoder."""

    args: Mapping[str, Any]
    trunk: Trunk


def write_config(
    config: Mapping[str, Any], class_names: Sequence[str] = (), multilabel: bool = False
) -> dict[str, Any]:
    """Return the config.json of a TextDecoder. Raises: ValueError that lists every setting that GPT-2 does not have."""
    args, trunk = check_gpt2_decoder(config)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": args["vocabulary"],
        "n_positions": args["context"],
        "n_embd": trunk.dim,
        "n_layer": trunk.depth,
        "n_head": trunk.heads,
        "n_inner": trunk.hidden,
        "activation_function": vit_config.find_hf_act(trunk),
        "layer_norm_epsilon": trunk.eps,
        "tie_word_embeddings": args["tied"],
    }


def check_gpt2_decoder(config: Mapping[str, Any]) -> GPT2Target:
    """Return the parts of a TextDecoder. Raises: ValueError that lists every setting that GPT-2 does not have."""
    args, encoder = get_decoder_args(config)
    trunk = read_trunk(args["encoder"], causal=True)
    checks = {
        **make_decoder_checks(args, encoder),
        "table must be Learned": read_part(args["table"]).kind is Learned,
        f"encoder must have MLPs, with an act of {', '.join(vit_config.ACTS)}": (
            trunk.act is not None and vit_config.find_hf_act(trunk) is not None
        ),
        "encoder must be without a layer scale": trunk.scale is None,
    }
    config_slots.refuse_problems(
        "the export to GPT2LMHeadModel", [*trunk.problems, *config_slots.list_failures(checks)]
    )
    return GPT2Target(args, trunk)
