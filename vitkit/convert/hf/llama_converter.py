"""The converter of Hugging Face's Llama."""

from vitkit.convert.hf import llama_config, llama_tensors, text_decoder
from vitkit.convert.hf.converter import Converter

CONVERTER = Converter(
    {"llama": ""},
    text_decoder.MODELS,
    llama_config.read_config,
    llama_tensors.to_vitkit,
    llama_config.write_config,
    llama_tensors.from_vitkit,
    text_decoder.compare_logits,
    can_write=llama_config.is_llama_decoder,
    find_left_out=text_decoder.find_dropout,
    write_token_ids=text_decoder.write_token_ids,
)
