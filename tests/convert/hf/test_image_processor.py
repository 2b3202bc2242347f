"""preprocessor_config.json as a Preprocess, against transformers' own processors."""

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.testing import assert_close

from vitkit.convert import config_slots
from vitkit.convert.hf import image_processor
from vitkit.convert.hf.vit_converter import CONVERTER
from vitkit.data.preprocess import Preprocess

transformers = pytest.importorskip("transformers")

MODEL_TYPES = CONVERTER.model_types
CUT = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}
FLAT = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
CONFIGS: dict[str, dict[str, Any]] = {
    "ViT": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}},
    "ViT of one number": {"feature_extractor_type": "ViTFeatureExtractor", "size": 32, "resample": 3},
    "oblong": {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 40}},
    "DeiT": {"image_processor_type": "DeiTImageProcessor", "size": 40, "crop_size": 32},
    "DINOv2": {"image_processor_type": "BitImageProcessor", **CUT, **FLAT},
    "DINOv2 of one number": {"image_processor_type": "BitImageProcessorFast", "size": 40, "crop_size": 32},
    "CLIP": {"image_processor_type": "CLIPImageProcessor", "size": 40, "crop_size": 32, **FLAT},
    "SigLIP": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 32, "width": 32}},
    "a size that rounds badly": {"image_processor_type": "BitImageProcessor", **CUT, "size": {"shortest_edge": 37}},
    "other pixels": {"image_processor_type": "ViTImageProcessor", "size": 32, "rescale_factor": 1 / 100, **FLAT},
    "bytes": {"image_processor_type": "ViTImageProcessor", "size": 32, "do_rescale": False, "image_std": [99.0] * 3},
    "no norm": {"image_processor_type": "ViTImageProcessor", "size": 32, "do_normalize": False},
}


def draw_picture(height: int, width: int) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (height // 6, width // 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", CONFIGS)
def test_pixels_equal_transformers(name, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CONFIGS[name]))
    kind = CONFIGS[name].get("image_processor_type", "ViTImageProcessor").removesuffix("Fast")
    reference = getattr(transformers, kind).from_pretrained(tmp_path)
    preprocess = image_processor.read_image_processor(CONFIGS[name])
    stretches = image_processor.list_differences(CONFIGS[name]) == (config_slots.IMPORT_STRETCH_NOTE,)
    assert stretches == ("shortest_edge" not in reference.size)
    image = draw_picture(60, 100) if name == "oblong" else draw_picture(72, 72 if stretches else 96)
    expected = reference(image, return_tensors="pt").pixel_values[0]
    # It resizes bytes by torchvision's kernel, which differs from Pillow's by a few of 255.
    assert_close(preprocess(image), expected.float(), rtol=0, atol=4 / 255 * (expected.max() - expected.min()).item())
    assert preprocess.size == tuple(expected.shape[1:])


def test_defaults_depend_on_the_model_type():
    assert (
        image_processor.read_image_processor({}).interpolation
        == image_processor.read_image_processor({}, MODEL_TYPES["vit_mae"]).interpolation
        == "bilinear"
    )
    assert image_processor.read_image_processor({}, MODEL_TYPES["deit"]).crop == 224 / 256
    assert (
        image_processor.read_image_processor({}, MODEL_TYPES["dinov2"]).mean
        == image_processor.read_image_processor({}, MODEL_TYPES["dinov2_with_registers"]).mean
        == (*image_processor.CLIP["image_mean"],)
    )


@pytest.mark.parametrize("name", image_processor.PROCESSORS)
def test_defaults_are_those_of_transformers(name):
    kind = f"{name}ImageProcessor"
    reference = {"do_center_crop": False, **json.loads(getattr(transformers, kind)().to_json_string())}
    values = image_processor.read_values({"image_processor_type": kind}, "ViT")
    if not values["do_center_crop"]:
        del values["crop_size"]
    assert {key: reference[key] for key in values} == values


@pytest.mark.parametrize("size", [(32, 32), (24, 40), (37, 37)])
@pytest.mark.parametrize("crop", [1.0, 0.875, 0.9])
def test_written_config_reads_back(size, crop):
    preprocess = Preprocess(size, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bilinear", crop)
    config = json.loads(json.dumps(image_processor.write_image_processor(preprocess)))
    try:
        restored = image_processor.read_image_processor(config)
    except ValueError:
        assert size == (24, 40) and crop != 1  # rounded, its sides are not the same part of the picture
        return
    image = draw_picture(72, 96)
    assert_close(restored(image), preprocess(image), rtol=0, atol=0)
    assert (config_slots.IMPORT_STRETCH_NOTE in image_processor.list_differences(config)) == (size[0] != size[1])


ALWAYS, BY_LENGTH = image_processor.SHIFTED, image_processor.SHIFTED_BY_LENGTH


@pytest.mark.parametrize(
    ("edge", "width", "shift", "note"),
    [(40, 41, 0, BY_LENGTH), (40, 42, 0, BY_LENGTH), (40, 43, 1, BY_LENGTH), (40, 45, 0, BY_LENGTH)]
    + [(40, 47, 1, BY_LENGTH), (40, 40, 0, BY_LENGTH), (35, 35, 1, ALWAYS), (35, 36, 0, ALWAYS)],
)
def test_crop_differs_as_the_note_says(edge, width, shift, note, tmp_path):
    config = CONFIGS["DINOv2"] | {"size": {"shortest_edge": edge}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    reference = transformers.BitImageProcessor.from_pretrained(tmp_path)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (edge, width, 3), np.uint8))  # not resized
    expected = reference(image, return_tensors="pt").pixel_values[0]
    pixels = image_processor.read_image_processor(config)(image)
    down = int(note == ALWAYS)
    assert_close(pixels[:, : 32 - down, : 32 - shift], expected[:, down:, shift:])
    assert image_processor.list_differences(config) == (note,)


def test_crop_of_a_stretched_picture_differs_where_the_note_says(tmp_path):
    config = {**CONFIGS["DeiT"], "size": 35}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (35, 35, 3), np.uint8))
    expected = transformers.DeiTImageProcessor.from_pretrained(tmp_path)(image, return_tensors="pt").pixel_values[0]
    assert_close(image_processor.read_image_processor(config)(image)[:, :31, :31], expected[:, 1:, 1:])
    assert image_processor.list_differences(config) == (config_slots.IMPORT_STRETCH_NOTE, ALWAYS)


def test_written_config_gives_equal_pixels_in_transformers(tmp_path):
    preprocess = Preprocess((32, 32), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic", 0.8)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image_processor.write_image_processor(preprocess)))
    reference = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    image = draw_picture(72, 96)
    expected = reference(image, return_tensors="pt").pixel_values[0]
    assert_close(preprocess(image), expected, rtol=0, atol=4 / 255 / 0.4)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"do_resize": False}, "do_resize must be true"),
        ({"resample": 4}, "resample must be one of 0, 1, 2, 3, got 4"),
        ({"resample": 5, "do_resize": False}, "resample.*; do_resize"),
        ({"size": {"longest_edge": 40}}, "size must be height and width, or shortest_edge"),
        ({"size": {"shortest_edge": 40, "longest_edge": 60}}, "size must be height and width, or shortest_edge"),
        ({"size": {"shortest_edge": 40}, "do_center_crop": False}, "do_center_crop must be true"),
        ({**CUT, "do_center_crop": True, "size": {"shortest_edge": 30}}, "crop_size must be the same part"),
        ({**CUT, "do_center_crop": True, "crop_size": {"height": 32, "width": 20}}, "crop_size must be the same part"),
        (
            {"image_mean": 5, "rescale_factor": "a"},
            "rescale_factor must be a number.*; image_mean must be a list of numbers",
        ),
        ({"do_resize": 1}, "do_resize must be true or false"),
        ({"size": {"shortest_edge": 0}}, "size must hold positive numbers of pixels"),
        ({"resample": []}, "resample must be one of"),
        ({"image_processor_type": "DonutImageProcessor"}, "image_processor_type must be one of ViTImageProcessor"),
    ],
)
def test_config_that_a_preprocess_cannot_hold_is_refused(config, rule):
    with pytest.raises(ValueError, match=rule):
        image_processor.read_image_processor(config)
