"""What --pretrained FOLDER stands for: the folder's model and preprocessing, as arguments that others override."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import yaml

from vitkit import configs
from vitkit.transfer import classifier, is_mae

# Nobody configures what the data knows about the model.
LINKS = {"outputs": "classes", "image_size": "size", "channels": "channels"}
CLASSIFY, RECONSTRUCT = "vitkit.tasks.classify.Classify", "vitkit.tasks.reconstruct.Reconstruct"
READ = ("size", "mean", "std", "interpolation", "crop")  # what a folder says about its pictures


def pretrained(arguments: Sequence[str]) -> list[str]:
    """An MAE gives a classifier its encoder, unless the task is to reconstruct.

    Raises: ValueError for what is no model folder, has a config that may not be built, or does not suit the task.
    """
    if (folder := named(arguments)) is None:
        return []
    if not all((folder / name).is_file() for name in ("config.yaml", "preprocess.json")):
        hint = f"; make one: vitkit import {folder} --out DIR" if re.match("(timm|openclip|hf):", str(folder)) else ""
        hint = f"; try {folder / 'model'}" if (folder / "model" / "config.yaml").is_file() else hint
        raise ValueError(f"pretrained must be a model folder, got pretrained={folder}{hint}")
    model = configs.read(folder / "config.yaml")
    configs.check(model, f"{folder}/config.yaml")
    task = str(last(arguments, ("--model", "--model.class_path"), "model", "class_path") or CLASSIFY)
    further = task.endswith(".Reconstruct")
    if further and not is_mae(model):
        raise ValueError(f"pretrained must be an MAE to be pretrained further, got {model['class_path']} in {folder}")
    if is_mae(model) and not further:
        model = classifier(model, outputs=0)
    own = cast(dict[str, Any], model).get("init_args", {})
    model = {**model, "init_args": {name: value for name, value in own.items() if name not in LINKS}}
    told = json.loads((folder / "preprocess.json").read_text("utf-8"))
    settings = {name: told[name] for name in READ if name in told}
    return [
        f"--model={RECONSTRUCT if further else CLASSIFY}",
        f"--model.init_args.model={json.dumps(model)}",
        "--data=vitkit.data.images.Images",
        *(
            f"--data.init_args.{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in settings.items()
        ),
    ]


def named(arguments: Sequence[str]) -> Path | None:
    """The last folder that a config or an option names; null is none."""
    found = last(arguments, ("--pretrained",), "pretrained")
    return None if found is None else Path(found)


def last(arguments: Sequence[str], options: Sequence[str], *keys: str) -> Any:
    """What one of these options says, or a config has at these keys, one inside the other: the last that is said."""
    found: Any = None
    for word, following in pairwise([*arguments, ""]):
        option, given, value = word.partition("=")
        value = value if given else following
        if option in ("-c", "--config") and Path(value).is_file():
            held: Any = _content(Path(value))
            for key in keys[:-1]:
                held = held.get(key)
                held = held if isinstance(held, dict) else {}
            found = held.get(keys[-1], found)
        elif option in options:
            found = None if value == "null" else value
    return found


def _content(config: Path) -> dict[str, Any]:
    """What is wrong with it as a config, its parser will say."""
    try:
        content = yaml.safe_load(config.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}
    return content if isinstance(content, dict) else {}
