"""The converter of Hugging Face's Llama."""

from collections.abc import Sequence
from typing import Any

from vitkit.convert.hf import llama_config, llama_tensors, text_decoder
from vitkit.convert.hf.converter import Config, Converter


def write_config(config: Config, class_names: Sequence[str] = (), multilabel: bool = False) -> dict[str, Any]:
    return llama_config.write_config(config)


CONVERTER = Converter(
    {"llama": ""},
    text_decoder.MODELS,
    llama_config.read_config,
    llama_tensors.to_vitkit,
    write_config,
    llama_tensors.from_vitkit,
    text_decoder.compare_logits,
    can_write=llama_config.is_llama_decoder,
    find_left_out=text_decoder.find_dropout,
    write_token_ids=text_decoder.write_token_ids,
)
