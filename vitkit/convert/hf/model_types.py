"""The table of converters of transformers: one per family of model types, to read and to write."""

from vitkit.convert.hf import clip_converter, gpt2_converter, llama_converter, vit_converter
from vitkit.convert.hf.converter import Config, Converter
from vitkit.convert.overrides import get_model_class

CONVERTERS: tuple[Converter, ...] = (
    vit_converter.CONVERTER,
    clip_converter.CONVERTER,
    llama_converter.CONVERTER,
    gpt2_converter.CONVERTER,
)


def find_reader(model_type: object) -> Converter:
    """Return the converter of a config.json. Raises: ValueError for a type that is not known."""
    for converter in CONVERTERS:
        if str(model_type) in converter.model_types:
            return converter
    known = ", ".join(name for converter in CONVERTERS for name in converter.model_types)
    raise ValueError(f"model_type must be one of {known}, got model_type={model_type!r:.80}")


def find_writer(config: Config) -> Converter:
    """Return the converter that writes the model of a config. Raises: ValueError for a class that none writes."""
    model = get_model_class(config)
    for converter in CONVERTERS:
        if model in converter.models and converter.can_write(config):
            return converter
    known = ", ".join(dict.fromkeys(kind.__name__ for converter in CONVERTERS for kind in converter.models))
    raise ValueError(f"model must be one of {known} to be written for transformers, got {model.__name__}")
