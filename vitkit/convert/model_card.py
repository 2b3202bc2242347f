"""A model card for the hub, made from the config.yaml and the report.json of the run that trained the model."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from torch import nn

from vitkit.bundle.bundle import Bundle
from vitkit.models import CLIP, MAE, TextDecoder, TextTower, ViT
from vitkit.models.parts import get_inputs
from vitkit.support.errors import format_count, prefix_errors
from vitkit.support.files import read_json

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

MACHINE_FIGURES = {"seconds", "samples_per_second"}  # of the machine, not of the model
COUNTS = ("unreadable", "epochs", "steps")


def make_card(bundle: Bundle, folder: Path, repository: str, license: str | None = None) -> "ModelCard":
    """Return the README.md of a repository: the hub's metadata, a summary, usage, the training recipe and figures."""
    from huggingface_hub import ModelCard, ModelCardData

    kind = str(bundle.config["class_path"]).rpartition(".")[2]
    tag = choose_task(bundle).tag
    data = ModelCardData(library_name="vitkit", pipeline_tag=tag, license=license, tags=["vitkit", kind.lower()])
    run, report = read_run(folder)
    unit = str(report.get("unit", "pictures"))  # older reports have none
    sections = [
        format_summary(bundle, kind),
        format_usage(repository, bundle),
        *format_recipe(run),
        *format_figures(report, unit),
    ]
    return ModelCard("\n\n".join([f"---\n{data}\n---", f"# {repository.rpartition('/')[2]}", *sections]) + "\n")


def read_run(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the config and the report of the run that wrote the folder, as far as they are there."""
    run: Mapping[str, Any] = {}
    report: Mapping[str, Any] = {}
    if (path := folder.absolute().parent / "config.yaml").is_file():
        with prefix_errors(path):
            run = check_mapping(yaml.safe_load(path.read_text("utf-8")) or {})
    if (path := folder.absolute().parent / "report.json").is_file():
        report = read_json(path)
    return run, report


def check_mapping(value: object) -> Mapping[str, Any]:
    if not (isinstance(value, Mapping) and all(isinstance(name, str) for name in value)):
        raise ValueError(f"must hold names and values, got {value!r:.80}")
    return value


def get_section(value: object, *names: str) -> Mapping[str, Any]:
    """Return the mapping under these nested names, an empty one if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


class HubTask(NamedTuple):
    """The task of a model: the hub's tag, a line of Python that answers, and a sentence about texts."""

    tag: str
    answer: str
    texts: str = ""


def make_image_task(bundle: Bundle) -> HubTask:
    if bundle.class_names:
        answer = "bundle.class_names[bundle.model(images).argmax()]"
        if bundle.multilabel:
            pairs = "zip(bundle.class_names, bundle.model(images)[0].sigmoid(), strict=True)"
            answer = f"[name for name, probability in {pairs} if probability > 0.5]"
        return HubTask("image-classification", f"print({answer})")
    return HubTask("image-feature-extraction", "tokens = bundle.model.features(images)  # (B, T, D)")


def make_pair_task(bundle: Bundle) -> HubTask:
    answer = "print(bundle.model.encode_image(images) @ bundle.model.encode_text(ids).mT)  # cosines, (1, 2)"
    return HubTask("zero-shot-image-classification", answer, "and pictures become vectors of one space")


def make_text_task(bundle: Bundle) -> HubTask:
    return HubTask("feature-extraction", "vectors = bundle.model(ids)  # (2, E)", "become vectors")


def make_decoder_task(bundle: Bundle) -> HubTask:
    return HubTask(
        "text-generation", "logits = bundle.model(ids)  # of the id after each, (2, T, V)", "can be continued"
    )


TASKS: Mapping[type[nn.Module], Callable[[Bundle], HubTask]] = {
    ViT: make_image_task,
    MAE: make_image_task,
    CLIP: make_pair_task,
    TextTower: make_text_task,
    TextDecoder: make_decoder_task,
}


def choose_task(bundle: Bundle) -> HubTask:
    """Return the task of a model. Raises: ValueError for a model of another class."""
    kind = type(bundle.model)
    if kind not in TASKS:
        known = ", ".join(model.__name__ for model in TASKS)
        raise ValueError(f"model must be one of {known} to have a card, got a {kind.__name__} in {bundle.source}")
    return TASKS[kind](bundle)


def format_summary(bundle: Bundle, kind: str) -> str:
    count = format_count(sum(parameter.numel() for parameter in bundle.model.parameters()), "parameters")
    lines = [f"A {kind} of {count}, made with vitkit. It holds no pickles."]
    if (preprocess := bundle.preprocess) is not None:
        height, width = preprocess.size
        lines = [
            f"A {kind} of {count} for pictures {height} pixels high and {width} wide,",
            f"{'grey' if preprocess.channels == 1 else 'RGB'}, made with vitkit. It holds no pickles.",
        ]
    if (tokenizer := bundle.tokenizer) is not None:
        lines.append(f"Texts of up to {tokenizer.context} ids {choose_task(bundle).texts}.")
    if bundle.class_names:
        names = ", ".join(map(escape_markdown, bundle.class_names[:20]))
        several = ", of which a picture may have several" if bundle.multilabel else ""
        count = format_count(len(bundle.class_names), "classes")
        lines.append(f"{count}{several}: {names}{', ...' if len(bundle.class_names) > 20 else ''}.")
    return "\n".join(lines)


def escape_markdown(name: str) -> str:
    """Escape a stranger's name for one line of Markdown, without links, tags and headings."""
    return re.sub(r"([\\`*_\[\]<>#|~&$])", r"\\\1", " ".join(name.split()))


EXAMPLES = {  # lines of Python that make an input
    "images": 'images = bundle.preprocess(read_image("picture.jpg"))[None]',
    "texts": 'ids = bundle.tokenizer(["a red heart", "a picture of a cat"])',
}


def format_usage(repository: str, bundle: Bundle) -> str:
    inputs = get_inputs(bundle.model)
    python = [
        "import vitkit",
        *(["from vitkit.data.preprocess import read_image"] if "images" in inputs else []),
        f'bundle = vitkit.open_model("hf:{repository}")',
        *(EXAMPLES[kind] for kind in dict.fromkeys(inputs)),
        choose_task(bundle).answer,
    ]
    return "\n".join(["## Use", "", "```python", *python, "```"])


def format_recipe(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of data, epochs, optimiser and learning rate, as far as the run's config has them."""
    task, data = get_section(run, "model", "init_args"), get_section(run, "data", "init_args")
    rows = {
        "training set": shorten_source(data.get("train")),
        "validation set": shorten_source(data.get("val")),
        "batch size": data.get("batch"),
        "epochs": get_section(run, "trainer").get("max_epochs"),
        "learning rate": task.get("lr"),
        "learning rate for a batch of 256": task.get("base_lr"),
        "optimiser": format_class(task.get("optimizer")),
        "schedule": format_class(task.get("schedule")),
        "label smoothing": task.get("label_smoothing"),
        "moving average": get_section(run, "ema").get("decay"),
        "initial weights": shorten_source(run.get("pretrained")),
    }
    if lines := [f"| {name} | {value} |" for name, value in rows.items() if value not in (None, "", 0)]:
        yield "\n".join(["## Training", "", "| | |", "|---|---|", *lines])


def shorten_source(source: object) -> str | None:
    """Return the last part of a path, as folders are private; a name such as hf:mnist as it is."""
    if not isinstance(source, str):
        return None
    return source if re.match(r"[a-z]{2,}:[^/~]", source) else Path(source).name


def format_class(value: object) -> str | None:
    """Format a class and its arguments as one line."""
    match value:
        case {"class_path": str(path), **rest}:
            arguments = get_section(rest, "init_args")
            plain = {name: item for name, item in arguments.items() if isinstance(item, int | float | list | tuple)}
            return f"{path.rpartition('.')[2]}({', '.join(f'{name}={item}' for name, item in plain.items())})"
        case str(path):
            return path.rpartition(".")[2]
    return None


def format_figures(report: Mapping[str, Any], unit: str) -> Iterator[str]:
    """Yield the table of a report's figures next to its baselines, with the number of samples."""
    if not report:
        return
    others = MACHINE_FIGURES | ({"best"} if "kept" in report else set())  # which may be of other weights
    scores = {name: value for name, value in report.items() if type(value) is float and name not in others}
    counts = [
        f"{report[name]:,} {escape_markdown(name)}" for name in (unit, *COUNTS) if isinstance(report.get(name), int)
    ]
    rows = [*scores.items(), *get_section(report, "baselines").items(), *get_section(report, "probes").items()]
    known = [(name, value) for name, value in rows if type(value) in (int, float) and math.isfinite(value)]
    lines = [f"| {name} | {value:.4f} |" for name, value in known]
    head = ["## Figures", "", f"Validation set: {', '.join(counts)}.", *describe_kept_weights(report)]
    if isinstance(trained := report.get("trained_on"), int) and trained:
        rest = escape_markdown(unit)
        head.append(f"The model was trained on {trained:,} of these, so the figures overstate those on new {rest}.")
    yield "\n".join([*head, "", "| | |", "|---|---|", *lines])


def describe_kept_weights(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence that says of which epoch the weights and the figures are."""
    match report:
        case {"kept": "best", "kept_epoch": int(epoch)}:
            yield f"Weights and figures are of epoch {epoch}, the best, which was selected on this validation set."
        case {"kept": _}:
            yield "Weights and figures are of the last epoch."
        case {"best": _}:  # of an older version
            yield "The weights and `best` are of the best epoch, selected on this set; other figures are of the last."
