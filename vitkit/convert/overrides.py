"""What is known of a foreign model, and from whom: its source, the user, or convention, which is noted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from vitkit.bundle import model_config
from vitkit.convert.rules import Rule
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import SIZES

T = TypeVar("T")


class Imported(NamedTuple):
    """The config and the weights of a model that is not built yet, and what belongs to it.

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


def require_preprocess(found: Imported) -> Preprocess:
    """Return the preprocessing of images. Raises: ValueError for a model that reads none."""
    if found.preprocess is None:
        raise ValueError(f"model must read images, got a {get_model_class(found.config).__name__}, which reads none")
    return found.preprocess


def get_model_class(config: Mapping[str, Any]) -> Callable[..., object]:
    """Return the class of the model that a config describes."""
    return model_config.look_up(str(config["class_path"]), "class_path")


class Written(NamedTuple):
    """How far outputs are from the model's in the library written for (None: not checked), and what to know of it."""

    difference: float | None
    notes: tuple[str, ...]


class Overrides(NamedTuple):
    """What the user says, where the source does not, or of the preprocessing otherwise.

    Args:
        like: a model of the same architecture, such as timm:vit_base_patch16_224, or a folder with one; only its
            description is read.
        heads, decoder_heads: of attention.
        size: (h, w) of the image in pixels.
        norm_pix: whether the decoder of a masked autoencoder speaks of normalised patches.
        mean, std: one number a channel, of pixels from 0 to 1.
        interpolation: nearest, bilinear, bicubic or lanczos.
        crop: how much of the shorter side is kept, such as 0.875.
        classes: the names of the classes, in their order.
        tower: "image" leaves out the text tower of a CLIP.
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


def check_overrides(overrides: Overrides) -> Overrides:
    """Raises: ValueError for numbers that can be of no model."""
    heads = {"heads": overrides.heads, "decoder_heads": overrides.decoder_heads}
    if wrong := [f"{name}={count}" for name, count in heads.items() if count is not None and count < 1]:
        raise ValueError(f"heads must be at least 1, got {', '.join(wrong)}")
    if overrides.tower not in (None, "image"):
        raise ValueError(f"tower must be image, got tower={overrides.tower}")
    return overrides


def check_channels(overrides: Overrides, channels: int) -> Overrides:
    """Raises: ValueError where the user says means or deviations of another number of channels."""
    given = {"mean": overrides.mean, "std": overrides.std}
    if wrong := {name: values for name, values in given.items() if values and len(values) != channels}:
        said = ", ".join(f"{name}={values}" for name, values in wrong.items())
        raise ValueError(f"{' and '.join(wrong)} must hold {channels} numbers, one a channel, got {said}")
    return overrides


class Ledger:
    """Settles one value after another, and remembers what had to be assumed and what nobody says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lacking: list[str] = []

    def settle(self, option: str, *found: tuple[T | None, str], otherwise: T) -> T:
        """The first that is there, noted if it comes with a note; without any, `option` is lacking."""
        for value, note in found:
            if value is not None:
                self.notes += [note] if note else []
                return value
        self.lacking.append(option)
        return otherwise

    def close(self, source: str) -> None:
        """Raises: ValueError that lists all that is lacking."""
        if self.lacking:
            raise ValueError(
                f"{source} does not say all that a model is; give {', '.join(self.lacking)}, "
                "or --like with a model that is the same in all that (timm:NAME, or a folder that says it)"
            )


def get_usual_heads(dim: int) -> int | None:
    """As the published models of this width have them."""
    return {size.dim: size.heads for size in SIZES.values()}.get(dim)


def settle_preprocess(
    ledger: Ledger, overrides: Overrides, size: tuple[int, int], *known: tuple[Preprocess | None, str]
) -> Preprocess:
    """What the user says, value by value, before what is known, with its note where that speaks for all of them."""
    best, note = next(((held, why) for held, why in known if held), (None, ""))
    if best and note and any(overrides._asdict()[name] is None for name in PREPROCESSING):
        ledger.notes.append(note)
    mean = ledger.settle("--mean", (overrides.mean, ""), (best and best.mean, ""), otherwise=(0.5,))
    std = ledger.settle("--std", (overrides.std, ""), (best and best.std, ""), otherwise=(0.5,) * len(mean))
    interpolation = ledger.settle(
        "--interpolation", (overrides.interpolation, ""), (best and best.interpolation, ""), otherwise="bicubic"
    )
    crop = ledger.settle("--crop", (overrides.crop, ""), (best and best.crop, ""), otherwise=1.0)
    return Preprocess(size, mean, std, interpolation, crop)


ARCHITECTURE = ("like", "heads", "decoder_heads", "size", "norm_pix")
PREPROCESSING = ("mean", "std", "interpolation", "crop")


def refuse_overrides(source: str, overrides: Overrides, fields: Sequence[str]) -> None:
    """Raise ValueError that lists what was told of these fields, for a source that says itself what it is."""
    if given := [f"--{name.replace('_', '-')}" for name in fields if overrides._asdict()[name] is not None]:
        raise ValueError(f"{source} says by itself what it is; leave out {', '.join(given)}")


def override_preprocess(source: str, overrides: Overrides, preprocess: Preprocess) -> tuple[Preprocess, list[str]]:
    """For sources that describe themselves: only the preprocessing may be told otherwise, and that is noted.

    Raises: ValueError that lists what else was told.
    """
    refuse_overrides(source, overrides, ARCHITECTURE)
    own = preprocess.to_dict()
    others = {
        name: value for name, value in overrides._asdict().items() if name in own and value not in (None, own[name])
    }
    notes = [
        f"{name} {value} as told; {source} has {own[name]}" for name, value in others.items() if value != own[name]
    ]
    return Preprocess.from_dict({**own, **others}), notes


def choose_class_names(
    overrides: Overrides, outputs: int, own: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], list[str]]:
    """Names of so many classes: those that were told, the source's own, or numbers, which is noted.

    Raises: ValueError where they are not so many.
    """
    names = overrides.classes or own
    if names is None:
        names = tuple(map(str, range(outputs)))
        return names, [f"classes are called 0 to {outputs - 1}: nobody names them"] if outputs else []
    if len(names) != outputs:
        raise ValueError(f"classes must be {outputs}, as the head has outputs, got {len(names)} names")
    return names, []


def get_image_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of what reads pictures: of a CLIP its image tower, else the model."""
    return config["init_args"].get("image", config)


def get_text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of what reads texts: of a CLIP its text tower, else the model."""
    return config["init_args"].get("text", config)


def count_outputs(config: Mapping[str, Any]) -> int:
    """How many numbers the model's head gives; 0 without one."""
    return int(config["init_args"].get("outputs", 1000)) if config["class_path"].endswith("ViT") else 0


def get_grid(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many patches an image has, down and across."""
    args = get_image_config(config)["init_args"]
    (height, width), (rows, columns) = args["image_size"], args["patch_size"]
    return height // rows, width // columns
