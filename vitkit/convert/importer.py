"""Where models come from: a name of timm, open_clip or the hub, a folder, or a file. What comes out is vitkit's own."""

import re
from collections.abc import Mapping
from pathlib import Path

from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import open_folder, save
from vitkit.bundle.meta_device import refuse_unallocated, unallocated
from vitkit.convert.foreign_folders import CLIP_WEIGHTS, of_clip, of_folder
from vitkit.convert.hub_download import CLIP, CLIP_PICKLED, fetched
from vitkit.convert.layout_detection import of_file
from vitkit.convert.openclip import catalog
from vitkit.convert.overrides import (
    ARCHITECTURE,
    PREPROCESSING,
    Imported,
    Told,
    check_overrides,
    choose_class_names,
    described_by,
    image_of,
    in_channels,
    outputs_of,
    refuse_overrides,
)
from vitkit.convert.rules import inverse, names
from vitkit.convert.timm.catalog import import_timm
from vitkit.convert.weight_files import ENDS, tensors, weights_in
from vitkit.models.parts import get_inputs
from vitkit.support.files import create_folder


def import_model(source: str | Path, out: str | Path, told: Told | None = None) -> Imported:
    """Write what `source` is to a new model folder, whole or not at all; sources as in `vitkit import --help`.

    Args: told: what the source does not say, such as `vitkit.Told(heads=4)`; `Told` lists what it may hold.
    Raises: ValueError, where tensors do not fit with a line for each that is unknown, missing or misshapen.
    """
    with create_folder(Path(out)) as folder:
        found = imported(source, told)
        save(folder, built(found))
        open_folder(folder)
    return found


SCHEMES = ("timm", "openclip", "hf")


def imported(source: str | Path, told: Told | None = None) -> Imported:
    """timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, a folder in one of their formats, or a file of weights.

    A model folder of vitkit, on the hub or here, is what it is.

    Raises: ValueError; where tensors do not fit, one that lists all of them.
    """
    told = check_overrides(told or Told())
    scheme, name = split(source)
    match scheme:
        case "timm":
            found = import_timm(str(source), name, told)
        case "openclip":
            found = import_openclip(str(source), name, told)
        case "hf":
            found = of_path(str(source), fetched(str(source), name), told)
        case _:
            found = of_path(str(source), Path(name).expanduser(), told)
    return sized(found)


def split(source: str | Path) -> tuple[str, str]:
    """The scheme, "" for a path, and the rest. Raises: ValueError for a scheme that is not known."""
    if not (found := re.match(r"([a-z]{2,}):(.*)", str(source))):
        return "", str(source)
    if found[1] not in SCHEMES:
        raise ValueError(
            f"source must be a folder, a file, or {', '.join(f'{name}:NAME' for name in SCHEMES)}, got {source}; "
            f"{found[1]}: is not a source of models"
        )
    if not found[2]:
        raise ValueError(f"{source} must name a {'repository' if found[1] == 'hf' else 'model'}")
    return found[1], found[2]


def import_openclip(source: str, name: str, told: Told) -> Imported:
    """NAME@PRETRAINED of open_clip's tables, or a local folder in its format. Raises: ValueError."""
    if (folder := Path(name).expanduser()).is_dir():
        return of_folder(source, folder, told)
    import open_clip

    model, tag = catalog.parse_name(source, name)
    weights = open_clip.get_pretrained_cfg(model, tag)
    where, _, file = weights["hf_hub"].rpartition("/")  # such as timm/vit_base_patch32_clip_224.openai/
    folder = fetched(source, where, [[file]] if file else [CLIP, CLIP_PICKLED])
    path = folder / file if file else weights_in(folder, CLIP_WEIGHTS)
    return of_clip(source, tensors(path), *catalog.told_by(f"openclip:{model}@{tag}"), told)


def of_path(source: str, path: Path, told: Told) -> Imported:
    if path.is_dir():
        if (path / "config.yaml").is_file():
            return of_own(source, path, told)
        return of_folder(source, path, told)
    if not path.is_file():
        raise ValueError(f"source must be a folder or a file that exists, or timm:, openclip: or hf:NAME, got {source}")
    if path.suffix not in ENDS and not path.name.endswith(".index.json"):
        raise ValueError(f"a file of weights must end in one of {', '.join(sorted(ENDS))}, got {source}")
    return of_file(path, told)


def of_own(source: str, folder: Path, told: Told) -> Imported:
    bundle = open_folder(folder)
    config, preprocess, classes, notes = dict(bundle.config), bundle.preprocess, bundle.class_names, []
    if preprocess is None:
        refuse_overrides(source, told, (*ARCHITECTURE, *PREPROCESSING, "tower"))
    else:
        preprocess, notes = described_by(source, in_channels(told, preprocess.channels), preprocess)
    if told.classes:
        classes, _ = choose_class_names(told, outputs_of(config))
    state, tokenizer = bundle.model.state_dict(), bundle.tokenizer
    found = Imported(config, state, preprocess, classes, tuple(notes), bundle.multilabel, (), tokenizer)
    return image_tower(found) if told.tower == "image" and get_inputs(bundle.model) == ("images", "texts") else found


def image_tower(found: Imported) -> Imported:
    """Of a CLIP the ViT, whose outputs are the axes of an embedding."""
    state = {name.removeprefix("image."): found.state[name] for name in found.state if name.startswith("image.")}
    note = f"{len(found.state) - len(state)} tensors beside the image tower are left out"
    config = {**image_of(found.config)}
    return found._replace(config=config, state=state, notes=(*found.notes, note), tokenizer=None)


def open_foreign(source: str) -> Bundle:
    """Open timm:NAME, openclip:NAME or hf:NAME in memory, in eval mode."""
    return built(imported(source))._replace(source=source)


def sized(found: Imported) -> Imported:
    """Raises: ValueError for means of another number of channels; pictures of another size are noted."""
    if found.preprocess is None:
        return found
    args = image_of(found.config)["init_args"]
    channels = args.get("channels", 3)
    if channels != found.preprocess.channels:
        raise ValueError(f"mean must hold {channels} numbers, one a channel, got mean={found.preprocess.mean}")
    own = tuple(args["image_size"])
    if own == found.preprocess.size:
        return found
    note = f"pictures are {found.preprocess.size}, and positions of {own} are resampled to them, as in the source"
    return found._replace(notes=(*found.notes, note))


def built(found: Imported) -> Bundle:
    """Return the model in eval mode with what belongs to it; its source stays empty.

    Raises: ValueError that lists every tensor that is unknown, missing or misshapen; for numbers that are not finite,
    and for tensors of the model that are in no file.
    """
    with unallocated(weights.shapes_of(found.state)):
        model = model_config.build_model(found.config)
    own = weights.shapes_of(model.state_dict())
    theirs = names({*own, *found.state}, inverse(found.rules))
    if problems := weights.differences(own, weights.shapes_of(found.state)):
        lines = (f"{line}{in_file(line.split()[1].removesuffix(':'), theirs)}" for line in problems)
        raise ValueError("\n  ".join(["the source must fit the model that it describes, got", *lines]))
    if wrong := [name for name, tensor in found.state.items() if not tensor.isfinite().all()]:
        first = f"{wrong[0]}{in_file(wrong[0], theirs)}"
        raise ValueError(f"weights must be finite, got nan or inf in {len(wrong)} tensors, the first {first}")
    model.load_state_dict(found.state, assign=True)
    refuse_unallocated(model)
    return Bundle(model.eval(), found.config, found.preprocess, found.class_names, found.multilabel, found.tokenizer)


def in_file(name: str, theirs: Mapping[str, str]) -> str:
    """What to add to a name where the user's file has another."""
    return f" (there {theirs[name]})" if theirs[name] != name else ""
