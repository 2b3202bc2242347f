"""The tensors of Hugging Face's Llama under vitkit's names, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vitkit.convert.hf.llama_config import check_llama_decoder, parse_llama_config
from vitkit.convert.hf.text_decoder import remove_tied_head
from vitkit.convert.hf.vit_tensors import fuse_layers
from vitkit.convert.rules import Rule, invert_rules, rename

QKV, GATE_UP = ("q", "k", "v"), ("gate", "up")
# Names in a block of transformers -> names in a block of vitkit.
BLOCK = {
    "input_layernorm": "attn.norm",
    **{f"self_attn.{name}_proj": f"attn.f.{name}" for name in QKV},
    "self_attn.o_proj": "attn.f.out",
    "post_attention_layernorm": "mlp.norm",
    **{f"mlp.{name}_proj": f"mlp.f.{name}" for name in GATE_UP},
    "mlp.down_proj": "mlp.f.down",
}
RULES = (
    Rule("model.embed_tokens.{x}", "embed.tokens.{x}"),
    Rule("model.norm.{x}", "encoder.norm.{x}"),
    Rule("lm_head.{x}", "head.{x}"),
    *(
        Rule(f"model.layers.{{i}}.{theirs}.{{x}}", f"encoder.blocks.{{i}}.{ours}.{{x}}")
        for theirs, ours in BLOCK.items()
    ),
)
FREQUENCIES = "rotary_emb.inv_freq"  # in files of transformers before 4.32; they follow from the config


def to_vitkit(state: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of the model whose config is `read_config(hf_config)`."""
    values = parse_llama_config(hf_config)
    tensors = rename({name: state[name] for name in state if not name.endswith(FREQUENCIES)}, RULES)
    tensors = fuse_layers(tensors, QKV, "qkv", bias=values["attention_bias"])
    tensors = fuse_layers(tensors, GATE_UP, "gate_up", bias=values["mlp_bias"])
    return remove_tied_head(tensors, tied=values["tie_word_embeddings"])


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors beside `write_config(config)`. Raises: ValueError for settings that Llama does not have."""
    target = check_llama_decoder(config)
    heads, kv_heads, head_dim = target.heads
    tensors = split_layers(state, "qkv", QKV, [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
    tensors = split_layers(tensors, "gate_up", GATE_UP, [target.hidden] * 2)
    return rename(tensors, invert_rules(RULES))


def split_layers(
    state: Mapping[str, Tensor], whole: str, ends: Sequence[str], sizes: Sequence[int]
) -> dict[str, Tensor]:
    """Undo `fuse_layers`. Args: sizes: the rows of each part."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if f".{whole}." in name:
            parts = zip(ends, tensor.split([*sizes]), strict=True)
            tensors |= {name.replace(f".{whole}.", f".{end}."): part.contiguous() for end, part in parts}
        else:
            tensors[name] = tensor
    return tensors
