"""The tensors of Hugging Face's GPT-2 under vitkit's names, and back.

Files hold the names of the model inside (`wte.weight`), or of the one with a head (`transformer.wte.weight`). Its
matrices are of a Conv1D: (inputs, outputs).
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitkit.convert.hf.gpt2_config import check_gpt2_decoder, parse_gpt2_config
from vitkit.convert.hf.text_decoder import remove_tied_head
from vitkit.convert.rules import Rule, invert_rules, rename

BASE, HEAD = "transformer.", "lm_head."
# Names in a block of transformers -> names in a block of vitkit.
BLOCK = {
    "ln_1": "attn.norm",
    "attn.c_attn": "attn.f.qkv",
    "attn.c_proj": "attn.f.out",
    "ln_2": "mlp.norm",
    "mlp.c_fc": "mlp.f.up",
    "mlp.c_proj": "mlp.f.down",
}
RULES = (
    Rule("wte.{x}", "embed.tokens.{x}"),
    Rule("wpe.{x}", "embed.table.{x}"),
    Rule("ln_f.{x}", "encoder.norm.{x}"),
    Rule(f"{HEAD}{{x}}", "head.{x}"),
    *(Rule(f"h.{{i}}.{theirs}.{{x}}", f"encoder.blocks.{{i}}.{ours}.{{x}}") for theirs, ours in BLOCK.items()),
)
MATRICES = (".f.qkv.weight", ".f.out.weight", ".f.up.weight", ".f.down.weight")
MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # causal masks in files of transformers before 4.30


def to_vitkit(state: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state of the model whose config is `read_config(hf_config)`."""
    tied = parse_gpt2_config(hf_config)["tie_word_embeddings"]
    tensors = {name.removeprefix(BASE): tensor for name, tensor in state.items()}
    tensors = rename({name: tensors[name] for name in tensors if not MASK.fullmatch(name)}, RULES)
    return remove_tied_head(transpose_matrices(tensors), tied=tied)


def from_vitkit(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors beside `write_config(config)`. Raises: ValueError for settings that GPT-2 does not have."""
    check_gpt2_decoder(config)
    tensors = rename(transpose_matrices(state), invert_rules(RULES))
    return {name if name.startswith(HEAD) else BASE + name: tensor for name, tensor in tensors.items()}


def transpose_matrices(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Transpose the matrices of all blocks."""
    return {name: tensor.mT.contiguous() if name.endswith(MATRICES) else tensor for name, tensor in state.items()}
