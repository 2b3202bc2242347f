"""Export to the layouts of other libraries, each checked before it is kept: strict loading and equal outputs there."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitkit.convert import mae_weights, parity, tokenizer_files
from vitkit.convert.config_slots import EXPORT_STRETCH_NOTE, MULTILABEL
from vitkit.convert.hf import image_processor
from vitkit.convert.hf.model_types import find_writer
from vitkit.convert.openclip import config as openclip_config
from vitkit.convert.openclip import tensors as openclip_tensors
from vitkit.convert.openclip import two_towers
from vitkit.convert.overrides import Conversion, ExportResult, get_model_class, require_preprocess
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import CLIP as CLIP_WORDS
from vitkit.data.tokenizer import PIECES, Tokenizer
from vitkit.models import CLIP, MAE, TextDecoder, ViT
from vitkit.models.parts import get_inputs
from vitkit.support.errors import format_count
from vitkit.support.files import create_folder, replace_file, write_json

# Of exports to timm, hf and mae.
SHARED_FILES = (
    *("model.safetensors", "config.json", "preprocessor_config.json"),
    *tokenizer_files.FILES,
    *tokenizer_files.VOCABULARIES,
)


def export_to(model: str | Path, out: str | Path, to: str, *, overwrite: bool = False) -> ExportResult:
    """Write a model to a new folder in the layout of timm, hf (transformers), mae or openclip, or nothing if it fails.

    Args:
        model: a model folder, or a source of `vitkit import` that needs no options.
        overwrite: replace an earlier export in a folder that exists; other files in it stay.
    Raises: ValueError with all parts that the layout does not support, or for outputs that are not the model's.
    """
    from vitkit.convert.importer import import_source

    # OpenCLIP's layout has names of its own, may lie beside another, and its config names the tokenizer it reads.
    earlier = SHARED_FILES if to != "openclip" and (Path(out) / SHARED_FILES[0]).is_file() else ()
    with create_folder(Path(out), overwrite, earlier) as temporary:
        return write_layout(to, import_source(model), temporary)


def format_export(out: Path, result: ExportResult) -> str:
    """Return the files of an export, the difference of outputs, and the notes."""
    files = ", ".join(sorted(path.name for path in out.iterdir()))
    difference = "" if result.difference is None else f", largest difference {result.difference:.1e}"
    return "\n".join([f"{out}: {files}{difference}", *(note.replace("DIR", str(out)) for note in result.notes)])


TOLERANCE = 1e-4  # of any output; float32 in another order of operations differs by about 1e-6


def write_layout(to: str, conversion: Conversion, folder: Path) -> ExportResult:
    """Fill an empty folder with a model in the layout of timm, hf, mae or openclip.

    Raises: ValueError with all parts that the layout does not support, or if outputs differ by more than TOLERANCE.
    """
    if to not in WRITERS:
        raise ValueError(f"to must be one of {', '.join(WRITERS)}, got to={to}")
    writer = WRITERS[to]
    notes = (*writer.write(conversion, folder), *list_lost_pixel_options(conversion.preprocess))
    if missing := [package for package in writer.packages if find_spec(package) is None]:
        return ExportResult(None, (*notes, f"not checked: {', '.join(missing)} is not installed"))
    with torch.inference_mode():
        difference = writer.check(conversion, folder)
    if not difference <= TOLERANCE:
        raise ValueError(f"{to} must give the model's outputs within {TOLERANCE}, got a difference of {difference:.2g}")
    return ExportResult(difference, notes)


def list_lost_pixel_options(preprocess: Preprocess | None) -> list[str]:
    """Return a note for each option of the preprocessing that no other library has."""
    notes: list[str] = []
    if preprocess is not None and preprocess.window is not None:
        low, high = preprocess.window
        notes.append(f"grey of more than 8 bits is scaled from {low}..{high} to 0..255 here; do that before, there")
    if preprocess is not None and preprocess.background is not None:
        notes.append(
            f"transparent pictures are laid over a background ({preprocess.background}) here; do that before, there"
        )
    return notes


def write_timm(conversion: Conversion, folder: Path) -> tuple[str, ...]:
    arguments = timm_config.make_arguments(conversion.config)
    preprocess = require_preprocess(conversion)
    # A file cannot name these classes; the architecture of this name implies them.
    plain = {name: value for name, value in arguments.items() if name not in ("norm_layer", "mlp_layer")}
    config = {
        "architecture": timm_config.choose_architecture(conversion.config),
        "num_classes": arguments["num_classes"],
        "num_features": arguments["embed_dim"],
        "global_pool": arguments["global_pool"],
        **({"label_names": [*conversion.class_names]} if conversion.class_names else {}),
        **({"problem_type": MULTILABEL} if conversion.multilabel else {}),
        "model_args": plain,
        "pretrained_cfg": {
            "input_size": [preprocess.channels, *preprocess.size],
            "fixed_input_size": True,
            "interpolation": preprocess.interpolation,
            "crop_pct": preprocess.crop,
            "crop_mode": "center",
            "mean": preprocess.mean,
            "std": preprocess.std,
            "num_classes": arguments["num_classes"],
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", timm_tensors.from_vitkit(conversion.state, conversion.config))
    code = 'timm.create_model("local-dir:DIR", pretrained=True)'
    sets = "a picture may have several classes, those with a sigmoid above 0.5; timm ignores config.json's problem_type"
    return (code, sets) if conversion.multilabel else (code,)


def write_hf(conversion: Conversion, folder: Path) -> tuple[str, ...]:
    converter, inputs = find_writer(conversion.config), get_inputs(get_model_class(conversion.config))
    hf_config = converter.write_config(conversion.config, conversion.class_names, conversion.multilabel)
    state = converter.from_vitkit(conversion.state, conversion.config)
    notes = write_tokenizer(conversion, folder) if "texts" in inputs else ()
    if converter.write_token_ids is not None:
        hf_config |= converter.write_token_ids(require_tokenizer(conversion))
    write_json(folder / "config.json", hf_config)
    write_tensors(folder / "model.safetensors", state)
    if "images" in inputs:
        preprocess = require_preprocess(conversion)
        processor = image_processor.write_image_processor(preprocess, converter.processor)
        write_json(folder / "preprocessor_config.json", processor)
        notes += (EXPORT_STRETCH_NOTE,) if preprocess.size[0] != preprocess.size[1] else ()
    return (f'transformers.{hf_config["architectures"][0]}.from_pretrained("DIR")', *notes)


def write_tokenizer(conversion: Conversion, folder: Path) -> tuple[str, ...]:
    """Write the tokenizer for transformers' AutoTokenizer, and return notes on how to use it."""
    tokenizer = require_tokenizer(conversion)
    for name, content in tokenizer_files.convert_tokenizer(tokenizer).items():
        with replace_file(folder / name) as temporary:
            temporary.write_bytes(content)
    padding = "max_length" if tokenizer.whole else "longest"
    arguments = f'padding="{padding}", truncation=True, max_length={tokenizer.context}'
    code = f'ids = transformers.AutoTokenizer.from_pretrained("DIR")(texts, {arguments}, return_tensors="pt").input_ids'
    if tokenizer.clean:
        return code, f"clean texts before that, as open_clip.tokenizer.get_clean_fn({tokenizer.clean!r}) does"
    return (code,)


def require_tokenizer(conversion: Conversion) -> Tokenizer:
    """Return the tokenizer. Raises: ValueError without one."""
    if conversion.tokenizer is None:
        raise ValueError("a model that reads texts must have a tokenizer, got none")
    return conversion.tokenizer


def write_mae(conversion: Conversion, folder: Path) -> tuple[str, ...]:
    write_tensors(folder / "model.safetensors", mae_weights.from_vitkit(conversion.state, conversion.config))
    arguments = conversion.config["init_args"]
    return (
        'model.load_state_dict(safetensors.torch.load_file("DIR/model.safetensors")), of a MaskedAutoencoderViT with '
        f"norm_pix_loss={arguments.get('norm_pix', True)}",
        *list_left_out_classes(conversion),
    )


def list_left_out_classes(conversion: Conversion) -> tuple[str, ...]:
    """Return a note that a layout has no place for class names, if the model has some."""
    names = conversion.class_names
    return (f"left out: the names of {format_count(len(names), 'classes')}",) if names else ()


def write_openclip(conversion: Conversion, folder: Path) -> tuple[str, ...]:
    preprocess = require_preprocess(conversion)
    preprocess_cfg = {
        "size": preprocess.size,
        "mode": "RGB",
        "mean": preprocess.mean,
        "std": preprocess.std,
        "interpolation": preprocess.interpolation,
        "resize_mode": "shortest",
    }
    crop_notes = [f"pictures are cropped to {preprocess.crop:g} here, and whole there"] if preprocess.crop < 1 else []
    model = get_model_class(conversion.config)
    if model not in OPENCLIP:
        known = ", ".join(kind.__name__ for kind in OPENCLIP)
        raise ValueError(f"model must be one of {known} to be written for OpenCLIP, got {model.__name__}")
    openclip, notes = OPENCLIP[model](conversion, folder)
    write_json(folder / "open_clip_config.json", {"model_cfg": openclip.config, "preprocess_cfg": preprocess_cfg})
    write_tensors(folder / "open_clip_model.safetensors", openclip.state)
    return (*notes, *crop_notes)


class OpenCLIPModel(NamedTuple):
    """A model of OpenCLIP: its model_cfg and its tensors."""

    config: dict[str, Any]
    state: dict[str, Tensor]


def write_image_tower(conversion: Conversion, folder: Path) -> tuple[OpenCLIPModel, tuple[str, ...]]:
    state = openclip_tensors.from_vitkit(conversion.state, conversion.config)
    note = "the image tower alone: its tensors are visual.*, and model_cfg has no text_cfg"
    notes = (note, *list_left_out_classes(conversion))
    return OpenCLIPModel(openclip_config.write_config(conversion.config), state), notes


def write_both_towers(conversion: Conversion, folder: Path) -> tuple[OpenCLIPModel, tuple[str, ...]]:
    config, state = (
        two_towers.write_config(conversion.config),
        two_towers.from_vitkit(conversion.state, conversion.config),
    )
    tokenizer = check_openclip_tokenizer(require_tokenizer(conversion))
    if tokenizer.kind != CLIP_WORDS:
        write_tokenizer(conversion, folder)
        options = {"clean": tokenizer.clean or "whitespace"}
        config["text_cfg"] |= {"hf_tokenizer_name": "tokenizer.json", "tokenizer_kwargs": options}
    note = 'open_clip.create_model_from_pretrained("local-dir:DIR"), open_clip.get_tokenizer("local-dir:DIR")'
    if tokenizer.kind != CLIP_WORDS and tokenizer.clean is None:
        return OpenCLIPModel(config, state), (note, "white space in texts is joined there, and kept here")
    return OpenCLIPModel(config, state), (note,)


def check_openclip_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer. Raises: ValueError for one that OpenCLIP does not read."""
    if tokenizer.kind == PIECES:
        raise ValueError(
            f"vocabulary must be in a tokenizer.json to be read by OpenCLIP, got {PIECES}; export to hf, save it there "
            f'by AutoTokenizer.from_pretrained("DIR").save_pretrained("DIR"), and take that tokenizer.json'
        )
    if tokenizer.kind == CLIP_WORDS:
        tokenizer_files.refuse_options("OpenCLIP with CLIP's vocabulary", {"special": tokenizer.special})
    return tokenizer


OPENCLIP = {ViT: write_image_tower, CLIP: write_both_towers}


def write_tensors(path: Path, state: Mapping[str, Tensor]) -> None:
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
    with replace_file(path) as temporary:
        save_file(plain, temporary, metadata={"format": "pt"})


def check_timm(conversion: Conversion) -> None:
    timm_config.choose_architecture(conversion.config)


def check_hf(conversion: Conversion) -> None:
    converter = find_writer(conversion.config)
    converter.write_config(conversion.config, conversion.class_names, conversion.multilabel)


def check_mae(conversion: Conversion) -> None:
    mae_weights.check_mae_config(conversion.config)


def check_openclip(conversion: Conversion) -> None:
    if get_model_class(conversion.config) is ViT:
        openclip_config.write_config(conversion.config)
    else:
        two_towers.write_config(conversion.config)
        check_openclip_tokenizer(require_tokenizer(conversion))


class LayoutWriter(NamedTuple):
    """A layout of another library.

    Args:
        title: the name of the library in messages.
        models: the classes of models that it may hold.
        packages: those that `check` needs.
        check_config: raises ValueError for a model that the layout does not support, as far as no weights are needed.
        write: fills a folder, and returns notes on how to use it.
        check: returns the largest difference of outputs.
    """

    title: str
    models: tuple[Callable[..., object], ...]
    packages: tuple[str, ...]
    check_config: Callable[[Conversion], None]
    write: Callable[[Conversion, Path], tuple[str, ...]]
    check: Callable[[Conversion, Path], float]


WRITERS = {
    "timm": LayoutWriter("timm", (ViT,), ("timm",), check_timm, write_timm, parity.compare_timm),
    "hf": LayoutWriter(
        "transformers", (ViT, MAE, CLIP, TextDecoder), ("transformers",), check_hf, write_hf, parity.compare_hf
    ),
    "mae": LayoutWriter("MAE's code", (ViT, MAE), (), check_mae, write_mae, parity.compare_mae),
    "openclip": LayoutWriter(
        "OpenCLIP", (*OPENCLIP,), ("open_clip",), check_openclip, write_openclip, parity.compare_openclip
    ),
}
LAYOUTS = tuple(WRITERS)
