"""Hugging Face's preprocessor_config.json as a Preprocess, and back."""

import math
import re
from collections.abc import Mapping
from typing import Any

from vitkit.convert import config_slots
from vitkit.data.preprocess import Preprocess

HALF = [0.5, 0.5, 0.5]
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
# Values of names that a file leaves out: the attributes of the classes of transformers 5.24.
PLAIN: Mapping[str, Any] = {
    "do_resize": True,
    "size": 224,
    "do_center_crop": False,
    "crop_size": 224,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": HALF,
    "image_std": HALF,
}
# Image processors, without "ImageProcessor" -> their values.
PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "ViT": PLAIN | {"resample": 2},
    "DeiT": PLAIN | {"resample": 3, "size": 256, "do_center_crop": True},
    "Siglip": PLAIN | {"resample": 3},
    "CLIP": PLAIN | {"resample": 3, "size": {"shortest_edge": 224}, "do_center_crop": True} | CLIP,
    "Bit": PLAIN | {"resample": 3, "size": {"shortest_edge": 224}, "do_center_crop": True} | CLIP,
}
# transformers rounds half a pixel down, Preprocess to the even number: with 3, 7, 11, ... pixels too many they differ.
SHIFTED = "the crop lies one pixel further on than in the source"
SHIFTED_BY_LENGTH = f"{SHIFTED} in pictures whose longer side, resized, is 3, 7, 11, ... pixels too long"
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def read_image_processor(processor_config: Mapping[str, Any], name: str = "ViT") -> Preprocess:
    """Return the preprocessing that a preprocessor_config.json describes.

    Args: name: the image processor of a file that names none.
    Raises: ValueError that lists every setting that a Preprocess does not support.
    """
    values = read_values(processor_config, name)
    resized, cropped, problems = read_sizes(values)
    if values["resample"] not in [*RESAMPLE]:
        problems.append(f"resample must be one of {', '.join(map(str, RESAMPLE))}, got {values['resample']!r:.80}")
    if not values["do_resize"]:
        problems.append("do_resize must be true, got false: the model takes images of one size")
    config_slots.refuse_problems("preprocessor_config.json", problems)
    # Pixels are 0..1 here; mean and std of transformers are of pixels that are `scale` times as large.
    scale = 255 * values["rescale_factor"] if values["do_rescale"] else 255
    scale = 1 if math.isclose(scale, 1) else scale
    mean, std = (values["image_mean"], values["image_std"]) if values["do_normalize"] else ([0.0] * 3, [1.0] * 3)
    return Preprocess(
        cropped,
        tuple(value / scale for value in mean),
        tuple(value / scale for value in std),
        RESAMPLE[values["resample"]],
        compute_crop(cropped, resized),
    )


def list_differences(processor_config: Mapping[str, Any], name: str = "ViT") -> tuple[str, ...]:
    """Return a note for each difference between a Preprocess and the image processor."""
    values = read_values(processor_config, name)
    resized, cropped, _ = read_sizes(values)
    shifted = any((whole - cut) % 4 == 3 for whole, cut in zip(resized, cropped, strict=True))
    if "shortest_edge" in values["size"]:
        return (SHIFTED if shifted else SHIFTED_BY_LENGTH,)
    return (config_slots.IMPORT_STRETCH_NOTE, *([SHIFTED] if shifted else []))


def write_image_processor(preprocess: Preprocess, name: str = "Bit") -> dict[str, Any]:
    """Return the preprocessor_config.json of a Preprocess, which stretches pictures to sizes that are not square.

    Args: name: Bit or CLIP, whose processors do the same.
    """
    height, width = (math.floor(side / preprocess.crop) for side in preprocess.size)
    stretched = {"height": height, "width": width}
    return {
        "image_processor_type": f"{name}ImageProcessor",
        "do_convert_rgb": preprocess.channels == 3,
        "do_resize": True,
        "size": {"shortest_edge": height} if preprocess.size[0] == preprocess.size[1] else stretched,
        "resample": next(number for number, name in RESAMPLE.items() if name == preprocess.interpolation),
        "do_center_crop": True,
        "crop_size": {"height": preprocess.size[0], "width": preprocess.size[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [*preprocess.mean],
        "image_std": [*preprocess.std],
    }


def read_values(processor_config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return all values with defaults, `size` as {"height", "width"} or {"shortest_edge"}."""
    kind = processor_config.get("image_processor_type", processor_config.get("feature_extractor_type"))
    name = name if kind is None else re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", kind)
    if name not in PROCESSORS:
        known = ", ".join(f"{known}ImageProcessor" for known in PROCESSORS)
        raise ValueError(f"image_processor_type must be one of {known}, got {kind!r:.80}")
    values = {**PROCESSORS[name], **{key: value for key, value in processor_config.items() if value is not None}}
    defaults = {key: value for key, value in PROCESSORS[name].items() if key not in ("size", "crop_size", "resample")}
    config_slots.refuse_problems("preprocessor_config.json", config_slots.list_type_errors(values, defaults))
    if isinstance(values["size"], int) and name in ("Bit", "CLIP"):
        values["size"] = {"shortest_edge": values["size"]}
    for key in ("size", "crop_size"):
        if not isinstance(values[key], Mapping):
            height, width = config_slots.parse_size(values[key], key)
            values[key] = {"height": height, "width": width}
        elif not all(type(side) is int and side > 0 for side in values[key].values()):
            raise ValueError(f"{key} must hold positive numbers of pixels, got {key}={values[key]!r:.80}")
    return values


def read_sizes(values: Mapping[str, Any]) -> tuple[tuple[int, int], tuple[int, int], list[str]]:
    """Return the size (h, w) after resizing, the size (h, w) after cropping, and what a Preprocess cannot do."""
    size, crop = values["size"], values["crop_size"]
    match size, crop:
        case {"shortest_edge": int(edge), **more}, {"height": int(height), "width": int(width)} if not more:
            resized, cropped = (edge, edge), (height, width)
            if not values["do_center_crop"]:
                return resized, cropped, ["do_center_crop must be true where size is shortest_edge, got false"]
        case {"height": int(rows), "width": int(columns)}, {"height": int(height), "width": int(width)}:
            resized = rows, columns
            cropped = (height, width) if values["do_center_crop"] else resized
        case _:
            rule = "size must be height and width, or shortest_edge; crop_size height and width"
            return (1, 1), (1, 1), [f"{rule}, got size={size!r:.80}, crop_size={crop!r:.80}"]
    share = compute_crop(cropped, resized)
    if share > 1 or any(math.floor(cut / share) != whole for cut, whole in zip(cropped, resized, strict=True)):
        rule = "crop_size must be the same part of size down and across, and at most all of it"
        return resized, cropped, [f"{rule}, got crop_size={cropped}, size={resized}"]
    return resized, cropped, []


def compute_crop(cropped: tuple[int, int], resized: tuple[int, int]) -> float:
    """Return the `crop` with which Preprocess resizes to `resized`, although it rounds sizes down."""
    sides = list(zip(cropped, resized, strict=True))
    exact, safe = (min(cut / (whole + more) for cut, whole in sides) for more in (0, 0.5))
    return exact if all(math.floor(cut / exact) == whole for cut, whole in sides) else safe
