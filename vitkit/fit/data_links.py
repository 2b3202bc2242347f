"""Arguments of a model that follow from its data, so that no config gives them."""

from collections.abc import Mapping
from typing import Any

from vitkit.data.data_module import Data

# Arguments of a model, and of the image tower of two, by the attributes of the data that they are set to.
LINKS = {"outputs": "num_classes", "image_size": "size", "channels": "channels"}
TOWER, TOWER_LINKS = "image", {"image_size": "size", "channels": "channels"}


def find_links(data: Data | type[Data]) -> dict[str, str]:
    """Return the links whose attribute the data has, as jsonargparse does."""
    return {name: attribute for name, attribute in LINKS.items() if attribute in dir(data)}


def remove_links(model: Mapping[str, Any], links: Mapping[str, str] = LINKS) -> dict[str, Any]:
    """Return a model's config without the arguments that follow from its data."""
    arguments = {name: value for name, value in model.get("init_args", {}).items() if name not in links}
    match arguments:
        case {"image": {"class_path": _} as tower}:
            arguments[TOWER] = remove_links(tower, TOWER_LINKS)
    return {**model, "init_args": arguments}


def fill_links(model: Mapping[str, Any], data: Data, links: Mapping[str, str] = LINKS) -> dict[str, Any]:
    """Return a model's config with the arguments that follow from its data."""
    arguments: dict[str, Any] = dict(model.get("init_args", {}))
    arguments |= {name: getattr(data, links[name]) for name in links if name in arguments}
    match arguments:
        case {"image": {"class_path": _} as tower}:
            arguments[TOWER] = fill_links(tower, data, TOWER_LINKS)
    return {**model, "init_args": arguments}
