"""The converter of Hugging Face's GPT-2."""

from vitkit.convert.hf import gpt2_config, gpt2_tensors, text_decoder
from vitkit.convert.hf.converter import Converter

CONVERTER = Converter(
    {"gpt2": ""},
    text_decoder.MODELS,
    gpt2_config.read_config,
    gpt2_tensors.to_vitkit,
    gpt2_config.write_config,
    gpt2_tensors.from_vitkit,
    text_decoder.compare_logits,
    find_left_out=text_decoder.find_dropout,
    write_token_ids=text_decoder.write_token_ids,
)
