"""The parts of a model of any family: its inputs, towers and layers.

Only this module checks which family a model belongs to. A new family adds itself to the functions that concern it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torch import nn

from vitkit.models.clip import CLIP
from vitkit.models.headed_tower import HeadedTower
from vitkit.models.mae import MAE, Decoder
from vitkit.models.protocol import Model
from vitkit.models.text import TextDecoder, TextTower
from vitkit.models.vit import ViT
from vitkit.nn import Encoder, PatchEmbed, TokenEmbed

ImageTower = ViT | MAE  # each of them satisfies ImageModel
TOWERS = (
    ViT | MAE | TextTower | TextDecoder
)  # their layers are counted separately from those of a model that contains them
READOUT = Decoder  # follows the last block as a head does, so its layers do not count as the model's
EMBEDDINGS = PatchEmbed | TokenEmbed


class Layers(NamedTuple):
    """The layers of one tower.

    `blocks` are its blocks, first to last. `modules[0]` embed its input; `modules[i]` are block i, counted from 1, and
    the modules between it and the previous block. Modules after the last block are in no layer.
    """

    blocks: tuple[nn.Module, ...]
    modules: tuple[tuple[nn.Module, ...], ...]


def get_inputs(model: nn.Module | Callable[..., object]) -> tuple[str, ...]:
    """Return the inputs of `forward` that a model or its class declares, in order; () if it has none, as an Encoder."""
    return model.inputs if isinstance(model, Model) else ()


def get_image_tower(model: nn.Module) -> ImageTower:
    """Return the image tower of a model, which may be the model itself.

    Raises: ValueError for a model without one.
    """
    if (tower := find_image_tower(model)) is None:
        raise ValueError(f"model must be a ViT or an MAE, or a CLIP with its image tower, got {type(model).__name__}")
    return tower


def find_image_tower(model: nn.Module) -> ImageTower | None:
    """Return the image tower of a model; None for one without, and for any model of another library."""
    match model:
        case ViT() | MAE():
            return model
        case CLIP():
            return model.image
        case HeadedTower():
            return model.tower
    return None


def find_image_channels(model: nn.Module) -> int | None:
    """Return the number of channels of a model's images; None for a model without an image tower."""
    return None if (tower := find_image_tower(model)) is None else tower.embed.patches.in_channels


def require_image_model(model: nn.Module) -> ViT | MAE | HeadedTower:
    """Return the model if it satisfies ImageModel.

    Raises: ValueError for any other.
    """
    match model:
        case ViT() | MAE() | HeadedTower():
            return model
    raise ValueError(f"model must be a ViT or an MAE, got {type(model).__name__}")


def require_pair_model(model: nn.Module) -> CLIP:
    """Return the model if it embeds images and texts in one space.

    Raises: ValueError for any other.
    """
    match model:
        case CLIP():
            return model
    raise ValueError(f"model must be a CLIP, which reads texts too, got {type(model).__name__}")


def require_text_decoder(model: nn.Module) -> TextDecoder:
    """Return the model if it continues texts. Raises: ValueError for any other."""
    match model:
        case TextDecoder():
            return model
    raise ValueError(f"model must be a TextDecoder, which continues texts, got {type(model).__name__}")


def find_context(model: nn.Module) -> int | None:
    """Return the largest number of ids in a text; None for a model that reads no texts."""
    match model:
        case TextTower() | TextDecoder():
            return model.embed.context
        case CLIP():
            return model.text.embed.context
    return None


def get_text_tower(model: nn.Module) -> TextTower:
    """Return the text tower of a model, which may be the model itself.

    Raises: ValueError for a model without one.
    """
    match model:
        case TextTower():
            return model
        case CLIP():
            return model.text
    raise ValueError(f"model must be a TextTower, or a CLIP with its text tower, got {type(model).__name__}")


def find_masked_autoencoder(model: nn.Module) -> MAE | None:
    """Return the model if it can reconstruct hidden patches, None otherwise."""
    return model if isinstance(model, MAE) else None


def require_masked_autoencoder(model: nn.Module) -> MAE:
    """Return the model if it can reconstruct hidden patches. Raises: ValueError for any other."""
    if (mae := find_masked_autoencoder(model)) is None:
        raise ValueError(f"model must be an MAE to reconstruct, got {type(model).__name__}")
    return mae


def get_layers(model: nn.Module) -> Layers:
    """Return the layers of a model with one tower, or of a module that contains one; for an MAE the encoder's.

    Raises: ValueError for a model of several towers, and for one without an Encoder.
    """
    pieces = list(iterate_pieces(model))
    if any(isinstance(piece, Encoder) for piece in pieces):
        return arrange_layers(pieces)
    match [piece for piece in pieces if isinstance(piece, TOWERS | READOUT)]:
        case [tower]:
            return get_layers(tower)
        case []:
            raise ValueError(f"model must have an Encoder to have layers, got {type(model).__name__}")
        case towers:
            names = ", ".join(type(tower).__name__ for tower in towers)
            raise ValueError(
                f"model must have one tower, got {type(model).__name__} of {names}; "
                "take get_image_tower(model) or get_text_tower(model)"
            )


def get_layers_by_tower(model: nn.Module) -> list[Layers]:
    """Return the layers of each tower in a model, or in a module that contains models; [] without an Encoder.

    The decoder of a masked autoencoder is no tower: it follows the encoder's last block as a head does. The Encoders of
    a model of an unknown class are one tower, in the order of registration.
    """
    pieces = list(iterate_pieces(model))
    towers = [tower for piece in pieces if isinstance(piece, TOWERS) for tower in get_layers_by_tower(piece)]
    return [arrange_layers(pieces), *towers] if any(isinstance(piece, Encoder) for piece in pieces) else towers


def iterate_pieces(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts of a model in the order of registration: Encoders, embeddings, towers, other modules."""
    units = Encoder | EMBEDDINGS | TOWERS | READOUT
    if isinstance(model, Encoder):
        yield model
        return
    for child in model.children():
        if isinstance(child, units) or not any(isinstance(module, units) for module in child.modules()):
            yield child
        else:
            yield from iterate_pieces(child)


def arrange_layers(pieces: Iterable[nn.Module]) -> Layers:
    """Make a layer of each block and the modules between it and the previous block, as timm does for Swin.

    Layer 0 starts with the embedding. Modules registered before it are in no layer, as a head would be.
    """
    blocks: list[nn.Module] = []
    modules: list[tuple[nn.Module, ...]] = []
    leading: list[nn.Module] = []
    for piece in pieces:
        if isinstance(piece, Encoder):
            leading.append(piece.position)
            if not blocks:
                modules.append(tuple(leading))
                leading = []
            for block in piece.blocks:
                modules.append((*leading, block))
                leading = []
            blocks += piece.blocks
            leading = [piece.norm]
        elif isinstance(piece, EMBEDDINGS) and blocks:  # registered after the blocks that it feeds
            modules[0] = (piece, *modules[0])
        elif isinstance(piece, EMBEDDINGS) or leading:
            leading.append(piece)
    return Layers(tuple(blocks), tuple(modules))
