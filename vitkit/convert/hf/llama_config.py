"""Hugging Face's config.json of Llama as the config of a TextDecoder, and back. Dropout is not read.

H heads, K key/value heads, Dh head width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import SOFTMAX_CORES, Part, read_part
from vitkit.convert.hf.text_decoder import (
    check_architectures,
    get_decoder_args,
    make_decoder_checks,
    make_decoder_config,
)
from vitkit.nn import Attention, NoPositions, PreNorm, Rotary, SwiGLU

# Values of names that a config.json leaves out: the defaults of transformers 5.24, unchanged since 4.x.
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
THETA = 10_000.0  # the base of the frequencies of rotary positions


def read_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the TextDecoder that a config.json describes.

    Raises: ValueError that lists every setting that a TextDecoder does not support.
    """
    values = parse_llama_config(hf_config)
    dim = values["hidden_size"]
    ratio = config_slots.compute_mlp_ratio(values["intermediate_size"], dim)
    attention: dict[str, Any] = {"kv_heads": values["num_key_value_heads"], "bias": values["attention_bias"]}
    if values["head_dim"] * values["num_attention_heads"] != dim:
        attention["head_dim"] = values["head_dim"]
    slots = {
        "attention": ("vitkit.nn.Attention", attention),
        "norm": ("torch.nn.RMSNorm", {"eps": values["rms_norm_eps"]}),
        "mlp": ("vitkit.nn.SwiGLU", {"ratio": ratio, "bias": values["mlp_bias"]}),
        "position": ("vitkit.nn.Rotary", {"base": values["rope_theta"]}),
    }
    args = {"dim": dim, "depth": values["num_hidden_layers"], "heads": values["num_attention_heads"], "causal": True}
    args |= {name: {"class_path": path, "init_args": arguments} for name, (path, arguments) in slots.items()}
    encoder = {"class_path": "vitkit.nn.Encoder", "init_args": args}
    tied, context = values["tie_word_embeddings"], values["max_position_embeddings"]
    return make_decoder_config(encoder, values["vocab_size"], context, tied=tied, learned=False)


def parse_llama_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values with defaults. Raises: ValueError that lists every setting that is not supported."""
    check_architectures(hf_config, "LlamaForCausalLM")
    values = {name: hf_config.get(name, default) for name, default in DEFAULTS.items()}
    config_slots.refuse_problems("config.json", config_slots.list_type_errors(values, DEFAULTS))
    dim, heads = values["hidden_size"], values["num_attention_heads"]
    # The dictionary is transformers 5's rope_parameters, or 4's rope_scaling, which says "type" in older files.
    rope = hf_config.get("rope_parameters") or hf_config.get("rope_scaling") or {}
    config_slots.refuse_problems(
        "config.json", [] if isinstance(rope, Mapping) else ["rope_parameters must hold names"]
    )
    scaling, share = rope.get("rope_type", rope.get("type", "default")), rope.get("partial_rotary_factor", 1)
    values |= {
        "rope_theta": rope.get("rope_theta", hf_config.get("rope_theta", THETA)),
        "num_key_value_heads": hf_config.get("num_key_value_heads") or heads,
        "head_dim": hf_config.get("head_dim") or dim // heads,
    }
    sizes = {"num_key_value_heads": 1, "head_dim": 1, "rope_theta": THETA}
    config_slots.refuse_problems("config.json", config_slots.list_type_errors(values, sizes))
    kv_heads = values["num_key_value_heads"]
    checks = {
        f"hidden_act must be silu, got hidden_act={values['hidden_act']:.80}": values["hidden_act"] == "silu",
        f"num_attention_heads must divide hidden_size unless head_dim is given, got {heads} and {dim}": (
            dim % heads == 0 or hf_config.get("head_dim")
        ),
        f"num_key_value_heads must divide num_attention_heads, got {kv_heads} and {heads}": heads % kv_heads == 0,
        f"head_dim must be even, got head_dim={values['head_dim']}": values["head_dim"] % 2 == 0,
        f"rotary positions must be unscaled (rope_type default), got {scaling!r:.80}": scaling == "default",
        f"rotary positions must turn all channels, got partial_rotary_factor={share!r:.80}": share == 1,
    }
    config_slots.refuse_problems("config.json", config_slots.list_failures(checks))
    return values


class LlamaTarget(NamedTuple):
    """A TextDecoder that LlamaForCausalLM can hold: its arguments, its encoder and the parts in the encoder's slots."""

    args: Mapping[str, Any]
    encoder: Part
    attention: Part
    norm: Part
    mlp: Part
    position: Part

    @property
    def heads(self) -> tuple[int, int, int]:
        """H, K and Dh."""
        heads, dim = self.encoder.args["heads"], self.encoder.args["dim"]
        return heads, self.attention.args["kv_heads"] or heads, self.attention.args["head_dim"] or dim // heads

    @property
    def hidden(self) -> int:
        return int(self.encoder.args["dim"] * self.mlp.args["ratio"])


def write_config(
    config: Mapping[str, Any], class_names: Sequence[str] = (), multilabel: bool = False
) -> dict[str, Any]:
    """Return the config.json of a TextDecoder. Raises: ValueError that lists every setting that Llama does not have."""
    target = check_llama_decoder(config)
    heads, kv_heads, head_dim = target.heads
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": target.args["vocabulary"],
        "max_position_embeddings": target.args["context"],
        "hidden_size": target.encoder.args["dim"],
        "intermediate_size": target.hidden,
        "num_hidden_layers": target.encoder.args["depth"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": target.norm.args["eps"],
        "rope_theta": float(target.position.args["base"]),
        "attention_bias": target.attention.args["bias"],
        "mlp_bias": target.mlp.args["bias"],
        "tie_word_embeddings": target.args["tied"],
    }


def is_llama_decoder(config: Mapping[str, Any]) -> bool:
    """Return whether a TextDecoder resembles Llama more than GPT-2: by its norm."""
    _, encoder = get_decoder_args(config)
    return read_part(encoder.args["norm"]).kind is nn.RMSNorm


def check_llama_decoder(config: Mapping[str, Any]) -> LlamaTarget:
    """Return the parts of a TextDecoder. Raises: ValueError that lists every setting that Llama does not have."""
    args, encoder = get_decoder_args(config)
    slots = {name: read_part(encoder.args[name]) for name in ("attention", "norm", "mlp", "position", "residual")}
    attention, norm, mlp, position, residual = (slots[name] for name in slots)
    checks = {
        **make_decoder_checks(args, encoder),
        "encoder must be without memory_dim": encoder.args["memory_dim"] is None,
        "table must be NoPositions": read_part(args["table"]).kind is NoPositions,
        "attention must be vitkit.nn.Attention without scale and qk_norm": (
            attention.kind is Attention and attention.args["scale"] is None and attention.args["qk_norm"] is None
        ),
        "attention must look at every key, by a softmax": (
            attention.kind is not Attention or read_part(attention.args["core"]).kind in SOFTMAX_CORES
        ),
        "norm must be torch.nn.RMSNorm with a weight and an eps": (
            norm.kind is nn.RMSNorm and norm.args["eps"] is not None and norm.args["elementwise_affine"]
        ),
        "mlp must be vitkit.nn.SwiGLU, gated by SiLU": (
            mlp.kind is SwiGLU and read_part(mlp.args["gate"]).kind is nn.SiLU
        ),
        "position must be vitkit.nn.Rotary of one axis": position.kind is Rotary and position.args["axes"] == 1,
        "residual must be vitkit.nn.PreNorm without a scale": (
            residual.kind is PreNorm and residual.args["scale"] is None
        ),
    }
    config_slots.refuse_problems("the export to LlamaForCausalLM", config_slots.list_failures(checks))
    return LlamaTarget(args, encoder, attention, norm, mlp, position)
