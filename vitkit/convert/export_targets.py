"""The libraries and formats that a model can be exported to, from its config: no weights, and no other library."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitkit.bundle import model_config
from vitkit.convert.config_slots import read_part
from vitkit.convert.openclip.two_towers import has_timm_trunk
from vitkit.convert.overrides import Conversion, get_image_config, get_model_class, get_text_config
from vitkit.convert.write import WRITERS
from vitkit.data.preprocess import Preprocess
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import CLIP, MAE, ViT

PROGRAMS = (ViT, MAE, CLIP)  # models that become ONNX and torch.export programs
# The towers whose heads have no bias in a layout. Weights may have one of zeros, which training changes.
UNBIASED = {("openclip", ViT): ("image",), ("openclip", CLIP): ("image",), ("hf", CLIP): ("image", "text")}


class ExportTargets(NamedTuple):
    """The targets of a model.

    Args:
        layouts: the names in `vitkit export --to` of those that hold the model.
        obstacles: for each of the others that hold such a class of models, the rules that the model breaks.
        programs: whether it becomes ONNX and torch.export programs.
    """

    layouts: tuple[str, ...]
    obstacles: Mapping[str, str]
    programs: bool


def find_export_targets(
    config: Mapping[str, Any], preprocess: Preprocess | None, tokenizer: Tokenizer | None
) -> ExportTargets:
    """Return the targets of a model after a training, which may change each of its weights.

    Raises: ValueError for a model with parts that no model folder may name.
    """
    model_config.check_config(config, "model")
    conversion = Conversion({**config}, {}, preprocess, (), tokenizer=tokenizer)
    kind = get_model_class(config)
    obstacles = {name: list_obstacles(name, conversion) for name in WRITERS if kind in WRITERS[name].models}
    layouts = tuple(name for name, problems in obstacles.items() if not problems)
    broken = {name: "; ".join(problems) for name, problems in obstacles.items() if problems}
    return ExportTargets(layouts, broken, kind in PROGRAMS)


def list_obstacles(layout: str, conversion: Conversion) -> list[str]:
    """Return the rules of a layout that a model breaks."""
    config = conversion.config
    try:
        WRITERS[layout].check_config(conversion)
    except ValueError as error:
        problems = [str(error).rpartition(" is not supported: ")[2]]
    else:
        problems = []
    towers = {"image": get_image_config(config), "text": get_text_config(config)}
    unbiased = UNBIASED.get((layout, get_model_class(config)), ())
    if unbiased and not has_timm_trunk(towers["image"]):
        problems += [f"head must be without a bias in the {name} tower" for name in unbiased if has_bias(towers[name])]
    return problems


def has_bias(tower: Mapping[str, Any]) -> bool:
    """Return whether the head of a tower has a bias."""
    args = read_part(tower).args
    return bool(args["outputs"] and read_part(args["head"]).args.get("bias"))


def format_export_targets(config: Mapping[str, Any], preprocess: Preprocess | None, tokenizer: Tokenizer | None) -> str:
    """Return a line about the targets of a model; without a library among them, about the one with fewest obstacles."""
    try:
        layouts, obstacles, programs = find_export_targets(config, preprocess, tokenizer)
    except ValueError as error:
        return f"exports to: nothing, as no model folder may hold the model: {error}"
    names = [*(WRITERS[name].title for name in layouts), *(("ONNX", "torch.export") if programs else ())]
    line = f"exports to: {', '.join(names) or 'nothing'}"
    if layouts or not obstacles:
        return line
    nearest = min(obstacles, key=lambda name: obstacles[name].count(";"))
    return f"{line}; no other library holds this model, the nearest is {WRITERS[nearest].title}: {obstacles[nearest]}"
