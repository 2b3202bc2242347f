"""Models imported by a name of timm, open_clip or the hub, from a folder, or from a file, and built."""

import re
from collections.abc import Mapping
from pathlib import Path

from vitkit.bundle import model_config, weights
from vitkit.bundle.bundle import Bundle
from vitkit.bundle.folder import FILES, OPTIONAL_FILES, open_folder, save
from vitkit.bundle.meta_device import refuse_meta_tensors, use_meta_device
from vitkit.bundle.record_file import RECORD
from vitkit.convert.foreign_folders import OPENCLIP_STEMS, import_folder, import_openclip_weights
from vitkit.convert.hub_download import OPENCLIP_PICKLES, OPENCLIP_WEIGHTS, fetch_repository
from vitkit.convert.layout_detection import import_file
from vitkit.convert.openclip import catalog
from vitkit.convert.overrides import (
    ARCHITECTURE,
    PREPROCESSING,
    Conversion,
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
from vitkit.convert.weight_files import find_weights, read_weights
from vitkit.models.parts import get_image_tower, get_inputs
from vitkit.support.errors import format_count
from vitkit.support.files import create_folder


def import_model(
    source: str | Path, out: str | Path, overrides: Overrides | None = None, *, overwrite: bool = False
) -> Conversion:
    """Write the model of a source to a new model folder, or nothing if it fails.

    Args:
        source: as in `vitkit import --help`.
        overrides: values that the source does not hold, such as `vitkit.Overrides(heads=4)`.
        overwrite: replace a model in a folder that exists; other files in it stay.
    Raises: ValueError; for tensors that do not fit, with a line for each that is unknown, missing or misshapen.
    """
    folder = Path(out)
    earlier = (*OPTIONAL_FILES, RECORD) if all((folder / name).is_file() for name in FILES) else ()
    with create_folder(folder, overwrite, earlier) as temporary:
        conversion = import_source(source, overrides)
        save(temporary, build_bundle(conversion))
        open_folder(temporary)
    return conversion


SCHEMES = ("timm", "openclip", "hf")


def import_source(source: str | Path, overrides: Overrides | None = None) -> Conversion:
    """Import timm:NAME, openclip:NAME@PRETRAINED, hf:NAME, a folder in one of their formats, or a file of weights.

    A model folder of vitkit, on the hub or here, is read as it is.

    Raises: ValueError.
    """
    overrides = check_overrides(overrides or Overrides())
    scheme, name = split_source(source)
    match scheme:
        case "timm":
            conversion = import_timm(str(source), name, overrides)
        case "openclip":
            conversion = import_openclip(str(source), name, overrides)
        case "hf":
            conversion = import_path(str(source), fetch_repository(str(source), name), overrides)
        case _:
            conversion = import_path(str(source), Path(name).expanduser(), overrides)
    return check_image_size(conversion)


def split_source(source: str | Path) -> tuple[str, str]:
    """Return the scheme, "" for a path, and the rest. Raises: ValueError for an unknown scheme."""
    if not (match := re.match(r"([a-z]{2,}):(.*)", str(source))):
        return "", str(source)
    if match[1] not in SCHEMES:
        raise ValueError(
            f"source must be a folder, a file, or {', '.join(f'{name}:NAME' for name in SCHEMES)}, got {source}; "
            f"{match[1]}: is not a source of models"
        )
    if not match[2]:
        raise ValueError(f"{source} must name a {'repository' if match[1] == 'hf' else 'model'}")
    return match[1], match[2]


def import_openclip(source: str, name: str, overrides: Overrides) -> Conversion:
    """Import NAME@PRETRAINED of open_clip's tables, or a local folder in its format. Raises: ValueError."""
    if (folder := Path(name).expanduser()).is_dir():
        return import_folder(source, folder, overrides)
    import open_clip

    model, tag = catalog.parse_name(source, name)
    pretrained = open_clip.get_pretrained_cfg(model, tag)
    repository, _, file = pretrained["hf_hub"].rpartition("/")  # such as timm/vit_base_patch32_clip_224.openai/
    folder = fetch_repository(source, repository, [[file]] if file else [OPENCLIP_WEIGHTS, OPENCLIP_PICKLES])
    path = folder / file if file else find_weights(folder, OPENCLIP_STEMS)
    model_cfg, preprocess_cfg, _ = catalog.look_up_configs(f"openclip:{model}@{tag}")
    return import_openclip_weights(source, read_weights(path), model_cfg, preprocess_cfg, overrides)


def import_path(source: str, path: Path, overrides: Overrides) -> Conversion:
    """Import a folder or a file of weights. Raises: ValueError."""
    if path.is_dir():
        if (path / "config.yaml").is_file():
            return import_model_folder(source, path, overrides)
        return import_folder(source, path, overrides)
    if not path.is_file():
        raise ValueError(f"source must be a folder or a file that exists, or timm:, openclip: or hf:NAME, got {source}")
    return import_file(path, overrides)


def import_model_folder(source: str, folder: Path, overrides: Overrides) -> Conversion:
    """Import a model folder of vitkit. Raises: ValueError for overrides of its architecture."""
    bundle = open_folder(folder)
    config, preprocess, class_names, notes = dict(bundle.config), bundle.preprocess, bundle.class_names, []
    if preprocess is None:
        refuse_overrides(source, overrides, (*ARCHITECTURE, *PREPROCESSING, "tower"))
    else:
        preprocess, notes = override_preprocess(source, check_channels(overrides, preprocess.channels), preprocess)
    if overrides.classes:
        class_names, _ = choose_class_names(overrides, count_outputs(config))
    state, tokenizer = bundle.model.state_dict(), bundle.tokenizer
    conversion = Conversion(config, state, preprocess, class_names, tuple(notes), bundle.multilabel, (), tokenizer)
    image_alone = overrides.tower == "image" and get_inputs(bundle.model) == ("images", "texts")
    return extract_image_tower(conversion) if image_alone else conversion


def extract_image_tower(conversion: Conversion) -> Conversion:
    """Return the image tower of a CLIP, a ViT whose outputs are the axes of an embedding."""
    prefix = "image."
    state = {name.removeprefix(prefix): tensor for name, tensor in conversion.state.items() if name.startswith(prefix)}
    note = f"left out: {format_count(len(conversion.state) - len(state), 'tensors')} beside the image tower"
    config = {**get_image_config(conversion.config)}
    return conversion._replace(config=config, state=state, notes=(*conversion.notes, note), tokenizer=None)


def open_foreign(source: str) -> Bundle:
    """Open timm:NAME, openclip:NAME or hf:NAME in memory, in eval mode."""
    return build_bundle(import_source(source))._replace(source=source)


def check_image_size(conversion: Conversion) -> Conversion:
    """Return the conversion, with a note if the preprocessed images and the position table differ in size.

    Raises: ValueError if the preprocessing and the model differ in the number of channels.
    """
    if (preprocess := conversion.preprocess) is None:
        return conversion
    args = get_image_config(conversion.config)["init_args"]
    channels = args.get("channels", 3)
    if channels != preprocess.channels:
        raise ValueError(f"mean must hold {channels} numbers, one a channel, got mean={preprocess.mean}")
    image_size = tuple(args["image_size"])
    if image_size == preprocess.size:
        return conversion
    note = f"pictures are {preprocess.size}, and positions of {image_size}, if they are learned, are resampled to them"
    return conversion._replace(notes=(*conversion.notes, note))


def build_bundle(conversion: Conversion) -> Bundle:
    """Build the model, load its weights strictly, and return it in eval mode in a Bundle with an empty source.

    Raises: ValueError that lists every unknown, missing or misshapen tensor; for weights that are not finite; for
    tensors that loading leaves without values, such as non-persistent buffers; and for images that patches do not tile.
    """
    with use_meta_device(weights.get_shapes(conversion.state)):
        model = model_config.build_model(conversion.config)
    shapes = weights.get_shapes(model.state_dict())
    originals = map_names({*shapes, *conversion.state}, invert_rules(conversion.rules))
    if problems := weights.compare_shapes(shapes, weights.get_shapes(conversion.state)):
        lines = (f"{line}{format_original_name(line.split()[1].removesuffix(':'), originals)}" for line in problems)
        raise ValueError("\n  ".join(["the source must fit the model that it describes, got", *lines]))
    if non_finite := [name for name, tensor in conversion.state.items() if not tensor.isfinite().all()]:
        first = f"{non_finite[0]}{format_original_name(non_finite[0], originals)}"
        raise ValueError(f"weights must be finite, got nan or inf in {len(non_finite)} tensors, the first {first}")
    model.load_state_dict(conversion.state, assign=True)
    refuse_meta_tensors(model)
    config, _, preprocess, class_names, _, multilabel, _, tokenizer = conversion
    if preprocess is not None:
        get_image_tower(model).grid(preprocess.size)
    return Bundle(model.eval(), config, preprocess, class_names, multilabel, tokenizer)


def format_original_name(name: str, originals: Mapping[str, str]) -> str:
    """Return a remark on the name of a tensor in its source, "" if it is the same."""
    return f" (original name {originals[name]})" if originals[name] != name else ""
