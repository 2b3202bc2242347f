"""Where models come from: a name of timm, open_clip or the hub, a folder, or a file. What comes out is vitkit's own."""

import re
from collections.abc import Mapping
from pathlib import Path

from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import open_folder, save
from vitkit.bundle.meta_device import refuse_unallocated, unallocated
from vitkit.convert.foreign_folders import OPENCLIP_STEMS, import_folder, import_openclip_weights
from vitkit.convert.hub_download import OPENCLIP_PICKLES, OPENCLIP_WEIGHTS, fetch_repository
from vitkit.convert.layout_detection import import_file
from vitkit.convert.openclip import catalog
from vitkit.convert.overrides import (
    ARCHITECTURE,
    PREPROCESSING,
    Imported,
    Overrides,
    check_channels,
    check_overrides,
    choose_class_names,
    count_outputs,
    get_image_config,
    override_preprocess,
    refuse_overrides,
)
from vitkit.convert.rules import invert_rules, map_names
from vitkit.convert.timm.catalog import import_timm
from vitkit.convert.weight_files import ENDS, find_weights, read_weights
from vitkit.models.parts import get_inputs
from vitkit.support.files import create_folder


def import_model(source: str | Path, out: str | Path, overrides: Overrides | None = None) -> Imported:
    """Write what `source` is to a new model folder, whole or not at all; sources as in `vitkit import --help`.

    Args: overrides: what the source does not say, such as `vitkit.Overrides(heads=4)`.
    Raises: ValueError, where tensors do not fit with a line for each that is unknown, missing or misshapen.
    """
    with create_folder(Path(out)) as folder:
        found = import_source(source, overrides)
        save(folder, build_bundle(found))
        open_folder(folder)
    return found


SCHEMES = ("timm", "openclip", "hf")


def import_source(source: str | Path, overrides: Overrides | None = None) -> Imported:
    """timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, a folder in one of their formats, or a file of weights.

    A model folder of vitkit, on the hub or here, is what it is.

    Raises: ValueError; where tensors do not fit, one that lists all of them.
    """
    overrides = check_overrides(overrides or Overrides())
    scheme, name = split_source(source)
    match scheme:
        case "timm":
            found = import_timm(str(source), name, overrides)
        case "openclip":
            found = import_openclip(str(source), name, overrides)
        case "hf":
            found = import_path(str(source), fetch_repository(str(source), name), overrides)
        case _:
            found = import_path(str(source), Path(name).expanduser(), overrides)
    return check_image_size(found)


def split_source(source: str | Path) -> tuple[str, str]:
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


def import_openclip(source: str, name: str, overrides: Overrides) -> Imported:
    """NAME@PRETRAINED of open_clip's tables, or a local folder in its format. Raises: ValueError."""
    if (folder := Path(name).expanduser()).is_dir():
        return import_folder(source, folder, overrides)
    import open_clip

    model, tag = catalog.parse_name(source, name)
    weights = open_clip.get_pretrained_cfg(model, tag)
    where, _, file = weights["hf_hub"].rpartition("/")  # such as timm/vit_base_patch32_clip_224.openai/
    folder = fetch_repository(source, where, [[file]] if file else [OPENCLIP_WEIGHTS, OPENCLIP_PICKLES])
    path = folder / file if file else find_weights(folder, OPENCLIP_STEMS)
    return import_openclip_weights(
        source, read_weights(path), *catalog.look_up_configs(f"openclip:{model}@{tag}"), overrides
    )


def import_path(source: str, path: Path, overrides: Overrides) -> Imported:
    if path.is_dir():
        if (path / "config.yaml").is_file():
            return import_model_folder(source, path, overrides)
        return import_folder(source, path, overrides)
    if not path.is_file():
        raise ValueError(f"source must be a folder or a file that exists, or timm:, openclip: or hf:NAME, got {source}")
    if path.suffix not in ENDS and not path.name.endswith(".index.json"):
        raise ValueError(f"a file of weights must end in one of {', '.join(sorted(ENDS))}, got {source}")
    return import_file(path, overrides)


def import_model_folder(source: str, folder: Path, overrides: Overrides) -> Imported:
    bundle = open_folder(folder)
    config, preprocess, classes, notes = dict(bundle.config), bundle.preprocess, bundle.class_names, []
    if preprocess is None:
        refuse_overrides(source, overrides, (*ARCHITECTURE, *PREPROCESSING, "tower"))
    else:
        preprocess, notes = override_preprocess(source, check_channels(overrides, preprocess.channels), preprocess)
    if overrides.classes:
        classes, _ = choose_class_names(overrides, count_outputs(config))
    state, tokenizer = bundle.model.state_dict(), bundle.tokenizer
    found = Imported(config, state, preprocess, classes, tuple(notes), bundle.multilabel, (), tokenizer)
    return (
        extract_image_tower(found)
        if overrides.tower == "image" and get_inputs(bundle.model) == ("images", "texts")
        else found
    )


def extract_image_tower(found: Imported) -> Imported:
    """Of a CLIP the ViT, whose outputs are the axes of an embedding."""
    state = {name.removeprefix("image."): found.state[name] for name in found.state if name.startswith("image.")}
    note = f"{len(found.state) - len(state)} tensors beside the image tower are left out"
    config = {**get_image_config(found.config)}
    return found._replace(config=config, state=state, notes=(*found.notes, note), tokenizer=None)


def open_foreign(source: str) -> Bundle:
    """Open timm:NAME, openclip:NAME or hf:NAME in memory, in eval mode."""
    return build_bundle(import_source(source))._replace(source=source)


def check_image_size(found: Imported) -> Imported:
    """Raises: ValueError for means of another number of channels; pictures of another size are noted."""
    if found.preprocess is None:
        return found
    args = get_image_config(found.config)["init_args"]
    channels = args.get("channels", 3)
    if channels != found.preprocess.channels:
        raise ValueError(f"mean must hold {channels} numbers, one a channel, got mean={found.preprocess.mean}")
    own = tuple(args["image_size"])
    if own == found.preprocess.size:
        return found
    note = f"pictures are {found.preprocess.size}, and positions of {own} are resampled to them, as in the source"
    return found._replace(notes=(*found.notes, note))


def build_bundle(found: Imported) -> Bundle:
    """Return the model in eval mode with what belongs to it; its source stays empty.

    Raises: ValueError that lists every tensor that is unknown, missing or misshapen; for numbers that are not finite,
    and for tensors of the model that are in no file.
    """
    with unallocated(weights.shapes_of(found.state)):
        model = model_config.build_model(found.config)
    own = weights.shapes_of(model.state_dict())
    theirs = map_names({*own, *found.state}, invert_rules(found.rules))
    if problems := weights.differences(own, weights.shapes_of(found.state)):
        lines = (f"{line}{format_original_name(line.split()[1].removesuffix(':'), theirs)}" for line in problems)
        raise ValueError("\n  ".join(["the source must fit the model that it describes, got", *lines]))
    if wrong := [name for name, tensor in found.state.items() if not tensor.isfinite().all()]:
        first = f"{wrong[0]}{format_original_name(wrong[0], theirs)}"
        raise ValueError(f"weights must be finite, got nan or inf in {len(wrong)} tensors, the first {first}")
    model.load_state_dict(found.state, assign=True)
    refuse_unallocated(model)
    return Bundle(model.eval(), found.config, found.preprocess, found.class_names, found.multilabel, found.tokenizer)


def format_original_name(name: str, theirs: Mapping[str, str]) -> str:
    """What to add to a name where the user's file has another."""
    return f" (there {theirs[name]})" if theirs[name] != name else ""
