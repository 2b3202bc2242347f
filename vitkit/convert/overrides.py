"""Facts that a foreign model leaves open, settled by overrides, the source, or a convention that is noted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from vitkit.bundle import model_config
from vitkit.convert.rules import Rule
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import SIZES
from vitkit.support.errors import format_few
from vitkit.support.names import escape_name, number_duplicates

T = TypeVar("T")


class Conversion(NamedTuple):
    """The config and the weights of a converted model that is not built yet, and what belongs to it.

    `build_bundle` makes a Bundle of it. `notes` are lines about what was assumed, left out, or differs from the source.
    `rules` hold the source's names of the tensors, as far as they are known. The other fields are as in Bundle.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    preprocess: Preprocess | None
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    multilabel: bool = False
    rules: tuple[Rule, ...] = ()
    tokenizer: Tokenizer | None = None


def require_preprocess(conversion: Conversion) -> Preprocess:
    """Return the preprocessing of images. Raises: ValueError for a model that reads none."""
    if conversion.preprocess is None:
        raise ValueError(
            f"model must read images, got a {get_model_class(conversion.config).__name__}, which reads none"
        )
    return conversion.preprocess


def get_model_class(config: Mapping[str, Any]) -> Callable[..., object]:
    """Return the class of the model that a config describes."""
    return model_config.look_up_name(str(config["class_path"]), "class_path")


class ExportResult(NamedTuple):
    """The result of an export.

    Args:
        difference: the largest, between outputs in the other library and the model's; None if it was not checked.
        notes: lines about how to load the files, and what differs there.
    """

    difference: float | None
    notes: tuple[str, ...]


class Overrides(NamedTuple):
    """The user's values for what a foreign model does not say, or for its preprocessing.

    Args:
        like: a model of the same architecture, such as timm:vit_base_patch16_224, or a folder with one; only its
            description is read.
        heads, decoder_heads: numbers of attention heads.
        size: (h, w) of the image in pixels; the model resamples learned positions of another size.
        norm_pix: whether the decoder of a masked autoencoder predicts normalised patches.
        mean, std: one number a channel, of pixels from 0 to 1.
        interpolation: nearest, bilinear, bicubic or lanczos.
        crop: the part of the shorter side that is kept, such as 0.875.
        classes: the names of the classes, in their order.
        tower: "image" leaves out the text tower of a CLIP.
        window, background: see Preprocess.
    """

    like: str | None = None
    heads: int | None = None
    decoder_heads: int | None = None
    size: tuple[int, int] | None = None
    norm_pix: bool | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    interpolation: str | None = None
    crop: float | None = None
    classes: tuple[str, ...] | None = None
    tower: str | None = None
    window: tuple[int, int] | None = None
    background: str | None = None


def check_overrides(overrides: Overrides) -> Overrides:
    """Return the overrides. Raises: ValueError for numbers that no model can have."""
    heads = {"heads": overrides.heads, "decoder_heads": overrides.decoder_heads}
    if wrong := [f"{name}={count}" for name, count in heads.items() if count is not None and count < 1]:
        raise ValueError(f"heads must be at least 1, got {', '.join(wrong)}")
    if overrides.tower not in (None, "image"):
        raise ValueError(f"tower must be image, got tower={overrides.tower}")
    return overrides


def check_channels(overrides: Overrides, channels: int) -> Overrides:
    """Return the overrides. Raises: ValueError where mean or std has another number of channels."""
    statistics = {"mean": overrides.mean, "std": overrides.std}
    if wrong := {name: values for name, values in statistics.items() if values and len(values) != channels}:
        text = ", ".join(f"{name}={values}" for name, values in wrong.items())
        raise ValueError(f"{' and '.join(wrong)} must hold {channels} numbers, one a channel, got {text}")
    return overrides


class Ledger:
    """Settles one value after another. Keeps notes of assumptions, and the options that are missing."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.missing: list[str] = []

    def settle(self, option: str, *candidates: tuple[T | None, str], otherwise: T) -> T:
        """Return the first value that is not None and keep its note.

        Without one, note `option` as missing and return `otherwise`.
        """
        for value, note in candidates:
            if value is not None:
                self.notes += [note] if note else []
                return value
        self.missing.append(option)
        return otherwise

    def close(self, source: str) -> None:
        """Raise ValueError that lists the missing options, if there are any."""
        if self.missing:
            raise ValueError(
                f"{source} does not describe its model completely; give {', '.join(self.missing)}, "
                "or --like with a model of the same architecture (timm:NAME, or a folder)"
            )


def get_usual_heads(dim: int) -> int | None:
    """Return the number of heads of the published models of this width, None if there are none."""
    return {size.dim: size.heads for size in SIZES.values()}.get(dim)


def settle_preprocess(
    ledger: Ledger, overrides: Overrides, size: tuple[int, int], *known: tuple[Preprocess | None, str]
) -> Preprocess:
    """Return the preprocessing with each value from the overrides, else from the first known preprocessing.

    The note of the latter is kept if any of its values is used.
    """
    default, note = next(((preprocess, note) for preprocess, note in known if preprocess), (None, ""))
    if default and note and any(overrides._asdict()[name] is None for name in REQUIRED):
        ledger.notes.append(note)
    mean = ledger.settle("--mean", (overrides.mean, ""), (default and default.mean, ""), otherwise=(0.5,))
    std = ledger.settle("--std", (overrides.std, ""), (default and default.std, ""), otherwise=(0.5,) * len(mean))
    interpolation = ledger.settle(
        "--interpolation", (overrides.interpolation, ""), (default and default.interpolation, ""), otherwise="bicubic"
    )
    crop = ledger.settle("--crop", (overrides.crop, ""), (default and default.crop, ""), otherwise=1.0)
    window, background = overrides.window, overrides.background
    if default is not None:
        window, background = window or default.window, background or default.background
    return Preprocess(size, mean, std, interpolation, crop, window, background)


ARCHITECTURE = ("like", "heads", "decoder_heads", "norm_pix")
REQUIRED = ("mean", "std", "interpolation", "crop")  # of a preprocessing
PREPROCESSING = (*REQUIRED, "size", "window", "background")


def refuse_overrides(source: str, overrides: Overrides, fields: Sequence[str]) -> None:
    """Raise ValueError that lists the overrides among these fields, for a source that describes itself."""
    if options := [f"--{name.replace('_', '-')}" for name in fields if overrides._asdict()[name] is not None]:
        raise ValueError(f"{source} describes itself; leave out {', '.join(options)}")


def override_preprocess(source: str, overrides: Overrides, preprocess: Preprocess) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing of a source that describes itself with the user's changes, and notes of them.

    Raises: ValueError that lists overrides of the architecture, which such a source does not take.
    """
    refuse_overrides(source, overrides, ARCHITECTURE)
    values = asdict(preprocess)
    changes = {
        name: value
        for name, value in overrides._asdict().items()
        if name in values and value not in (None, values[name])
    }
    notes = [
        f"{name} {value} overrides {values[name]} of {source}"
        for name, value in changes.items()
        if value != values[name]
    ]
    return Preprocess.from_dict({**values, **changes}), notes


def choose_class_names(
    overrides: Overrides, outputs: int, source_names: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], list[str]]:
    """Return names for so many classes, and notes: the user's names, the source's, or numbers, which is noted.

    Raises: ValueError for another number of names.
    """
    names = overrides.classes or source_names
    if names is None:
        names = tuple(map(str, range(outputs)))
        return names, [f"classes are called 0 to {outputs - 1}: the source has no names"] if outputs else []
    if len(names) != outputs:
        raise ValueError(f"classes must be {outputs}, as the head has outputs, got {len(names)} names")
    names = [*map(escape_name, names)]
    distinct = number_duplicates(names)
    repeated = [new for name, new in zip(names, distinct, strict=True) if name != new]
    return distinct, [f"classes of one name are numbered: {format_few(repeated)}"] if repeated else []


def get_image_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a CLIP's image tower; the config itself for another model."""
    return config["init_args"].get("image", config)


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a CLIP's text tower; the config itself for another model."""
    return config["init_args"].get("text", config)


def count_outputs(config: Mapping[str, Any]) -> int:
    """Return the width of a ViT's head; 0 without one, and for other models."""
    return int(config["init_args"].get("outputs", 1000)) if config["class_path"].endswith("ViT") else 0


def get_grid(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the grid (h, w) of patches of an image."""
    args = get_image_config(config)["init_args"]
    (height, width), (rows, columns) = args["image_size"], args["patch_size"]
    return height // rows, width // columns
