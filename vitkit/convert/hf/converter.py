"""The protocol of a converter for one family of transformers' models."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from vitkit.convert.overrides import Conversion
from vitkit.data.tokenizer import Tokenizer

State = Mapping[str, Tensor]
Config = Mapping[str, Any]


class LeftOut(NamedTuple):
    """Tensors that are dropped on purpose.

    Args: patterns: of names in the state of `to_vitkit`, for `weights.load(unused=...)`; notes: why.
    """

    patterns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class WriteConfig(Protocol):
    def __call__(self, config: Config, class_names: Sequence[str], multilabel: bool, /) -> dict[str, Any]: ...


class Converter(NamedTuple):
    """A family of models of transformers, converted to models of vitkit and back. All but `compare` raise ValueError.

    Args:
        model_types: each `model_type` of a config.json, with the image processor of a folder that names none; "" where
            no images are read.
        models: the classes of vitkit that it can write.
        can_write: a config of one of these classes -> whether this converter is the one to write it, of several.
        read_config: config.json -> the config of a model of vitkit.
        to_vitkit: tensors, config.json -> the state of the model that `read_config` describes.
        write_config: a config of vitkit, class names, whether it is multilabel -> config.json.
        from_vitkit: the state of a model of vitkit, its config -> the tensors beside the config.json of `write_config`.
        compare: the model of transformers, the model of vitkit, its source -> the largest difference of outputs.
        processor: the image processor of a folder that is written.
        write_token_ids: a tokenizer -> its ids in the config.json, beside those of `write_config`.
        read_classes: config.json -> class names, whether it is multilabel; None where the outputs are no classes.
        find_left_out: tensors, config.json -> the tensors that are dropped on purpose.
        image: the converter of the image tower alone, for models that have another.
        is_image_tower: tensors -> whether they are of the image tower alone.
    """

    model_types: Mapping[str, str]
    models: tuple[type[nn.Module], ...]
    read_config: Callable[[Config], dict[str, Any]]
    to_vitkit: Callable[[State, Config], dict[str, Tensor]]
    write_config: WriteConfig
    from_vitkit: Callable[[State, Config], dict[str, Tensor]]
    compare: Callable[[Any, nn.Module, Conversion], float]
    can_write: Callable[[Config], bool] = lambda config: True
    processor: str = ""
    write_token_ids: Callable[[Tokenizer], dict[str, int]] | None = None
    read_classes: Callable[[Config], tuple[tuple[str, ...], bool]] | None = None
    find_left_out: Callable[[State, Config], LeftOut] = lambda state, hf_config: LeftOut()
    image: "Converter | None" = None
    is_image_tower: Callable[[State], bool] = lambda state: False
