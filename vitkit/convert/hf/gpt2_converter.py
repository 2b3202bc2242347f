"""The converter of Hugging Face's GPT-2."""

from collections.abc import Sequence
from typing import Any

from vitkit.convert.hf import gpt2_config, gpt2_tensors, text_decoder
from vitkit.convert.hf.converter import Config, Converter


def write_config(config: Config, class_names: Sequence[str] = (), multilabel: bool = False) -> dict[str, Any]:
    return gpt2_config.write_config(config)


CONVERTER = Converter(
    {"gpt2": ""},
    text_decoder.MODELS,
    gpt2_config.read_config,
    gpt2_tensors.to_vitkit,
    write_config,
    gpt2_tensors.from_vitkit,
    text_decoder.compare_logits,
    find_left_out=text_decoder.find_dropout,
    write_token_ids=text_decoder.write_token_ids,
)
