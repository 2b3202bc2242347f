import io
import json
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.preprocess import RESAMPLING, PictureError, Preprocess, read

GREY = Preprocess((4, 6), (0.5,), (0.25,))
RGB = Preprocess((4, 6), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3))


def noise(width, height, channels=3):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8).squeeze())


@pytest.mark.parametrize("interpolation", RESAMPLING)
@pytest.mark.parametrize("crop", [1.0, 0.875, 0.5])
@pytest.mark.parametrize("size", [(33, 47), (47, 33), (16, 16), (17, 90), (7, 5), (16, 17)])
def test_square_models_follow_torchvision(size, crop, interpolation):
    image = noise(*size)
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    reference = v2.Compose(
        [
            v2.Resize(int(16 / crop), v2.InterpolationMode(interpolation)),
            v2.CenterCrop(16),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean, std),
        ]
    )
    assert_close(Preprocess((16, 16), mean, std, interpolation, crop)(image), torch.Tensor(reference(image)))


@pytest.mark.parametrize("size", [(30, 10), (10, 30), (6, 4), (12, 8), (13, 9), (1, 1)])
@pytest.mark.parametrize("crop", [1.0, 0.7])
def test_a_crop_that_is_not_square_is_filled_at_the_pictures_proportions(size, crop):
    preprocess = Preprocess((4, 6), (0.5,), (0.25,), crop=crop)
    white = Image.new("L", size, 255)
    assert_close(preprocess(white), torch.full((1, 4, 6), 2.0))
    ramp = Image.linear_gradient("L").rotate(90).resize((size[0] * 20, size[1] * 20))
    row = preprocess.resize(ramp)
    assert row.size == (6, 4)
    columns = np.asarray(row, dtype=int)
    assert (np.ptp(columns, axis=0) <= 1).all()


def test_a_picture_of_the_right_size_is_not_resampled():
    image = noise(6, 4)
    assert_close(RGB.pixels([RGB.resize(image)])[0], torch.from_numpy(np.array(image)).permute(2, 0, 1))


def test_transparency_is_laid_over_white():
    image = Image.new("RGBA", (2, 1))
    image.putpixel((0, 0), (255, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 0))
    assert list(RGB.convert(image).get_flattened_data()) == [(255, 0, 0), (255, 255, 255)]
    assert list(GREY.convert(image).get_flattened_data()) == [76, 255]


def test_transparency_of_a_palette_is_laid_over_white():
    image = Image.new("P", (2, 1))
    image.putpalette([9, 9, 9, 0, 0, 255])
    image.putdata([0, 1])
    file = io.BytesIO()
    image.save(file, "PNG", transparency=0)
    assert list(RGB.convert(Image.open(file)).get_flattened_data()) == [(255, 255, 255), (0, 0, 255)]


@pytest.mark.parametrize(
    ("mode", "white"),
    [
        ("1", 1),
        ("L", 255),
        ("LA", (255, 255)),
        ("P", "white"),
        ("I", 65535),
        ("I;16", 65535),
        ("I;16B", 65535),
        ("RGB", (255, 255, 255)),
        ("RGBA", (255, 255, 255, 255)),
        ("RGBX", (255, 255, 255, 255)),
        ("CMYK", (0, 0, 0, 0)),
        ("YCbCr", (255, 128, 128)),
        ("HSV", (0, 0, 255)),
        ("LAB", (255, 128, 128)),
    ],
)
def test_white_in_every_mode_is_white_in_grey_and_in_colour(mode, white):
    image = Image.new(mode, (2, 2), white)
    # LAB in 8 bits has no exact white.
    assert GREY.convert(image).getpixel((0, 0)) == pytest.approx(255, abs=1)
    assert RGB.convert(image).getpixel((1, 1)) == pytest.approx((255, 255, 255), abs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (0, 4)}, "size must be two positive numbers of pixels (h, w), got size=(0, 4)"),
        (
            {"mean": (0.5, 0.5), "std": (1.0, 1.0)},
            "mean must hold 1 number (grey) or 3 (RGB), all finite, got mean=(0.5, 0.5)",
        ),
        ({"std": (1.0, 1.0)}, "std must hold 3 positive numbers, as mean does, got std=(1.0, 1.0)"),
        ({"std": (1.0, 1.0, 0.0)}, "std must hold 3 positive numbers, as mean does, got std=(1.0, 1.0, 0.0)"),
        ({"interpolation": "cubic"}, "interpolation must be one of nearest, bilinear, bicubic, lanczos, got"),
        ({"crop": 1.1}, "crop must be above 0 and at most 1, got crop=1.1"),
        ({"crop": 0.0, "size": (4, -1)}, "got size=(4, -1); crop must be"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], message):
    with pytest.raises(ValueError) as error:
        replace(RGB, **change)
    assert message in str(error.value)


def test_settings_survive_json():
    preprocess = Preprocess((4, 6), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3), "bilinear", 0.9)
    assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown=['colour'], missing=[]"),
        ({"crop": None}, "must hold numbers as to_dict writes them"),
        ({"size": [4]}, "must hold numbers as to_dict writes them"),
        ({"mean": "grey"}, "must hold numbers as to_dict writes them"),
        ({"crop": 7}, "crop must be above 0 and at most 1, got crop=7.0"),
    ],
)
def test_foreign_settings_are_refused(change, message):
    with pytest.raises(ValueError) as error:
        Preprocess.from_dict(GREY.to_dict() | change)
    assert message in str(error.value)


def test_no_setting_is_filled_in_from_a_default():
    with pytest.raises(ValueError, match=r"unknown=\[\], missing=\['crop', 'interpolation'\]"):
        Preprocess.from_dict({"size": [4, 6], "mean": [0.5], "std": [0.5]})


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
        (3, Image.Transpose.ROTATE_180),
        (4, Image.Transpose.FLIP_TOP_BOTTOM),
        (5, Image.Transpose.TRANSPOSE),
        (6, Image.Transpose.ROTATE_90),
        (7, Image.Transpose.TRANSVERSE),
        (8, Image.Transpose.ROTATE_270),
    ],
)
def test_a_turned_picture_is_read_upright(orientation, turn, tmp_path):
    upright = noise(5, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright.transpose(turn).save(tmp_path / "turned.png", exif=exif)
    exif[0x0112] = 1
    upright.save(tmp_path / "upright.png", exif=exif)
    for name in ("turned.png", "upright.png"):
        assert read(tmp_path / name).tobytes() == upright.tobytes()


def test_the_first_of_several_frames_is_read(tmp_path):
    path = tmp_path / "picture.gif"
    Image.new("L", (4, 4), 255).save(path, save_all=True, append_images=[Image.new("L", (4, 4), 0)])
    assert GREY.convert(read(path)).getextrema() == (255, 255)


def test_16_bits_are_scaled_to_8(tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(np.array([[0, 128, 129, 257 * 100, 65535]], dtype=np.uint16)).save(path)
    assert list(read(path).get_flattened_data()) == [0, 0, 1, 100, 255]


def jpeg():
    file = io.BytesIO()
    noise(64, 64).save(file, "JPEG")
    return file.getvalue()


def png():
    file = io.BytesIO()
    noise(64, 64).save(file, "PNG")
    return file.getvalue()


def claims(width, height):
    """A PNG whose header promises more pixels than anyone should decode."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png()[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + png()[33:]


def floating():
    file = io.BytesIO()
    Image.new("F", (4, 4), 0.5).save(file, "TIFF")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (jpeg()[:-900], "OSError: image file is truncated"),
        (png()[:-900], "OSError: "),
        (png()[:40], "UnidentifiedImageError: "),
        (png()[:45] + b"\0" * 400 + png()[445:], "Error: "),
        (b"this is a text\n", "UnidentifiedImageError: "),
        (b"", "UnidentifiedImageError: "),
        (claims(20_000, 20_000), "DecompressionBombError: "),
        (claims(10_000, 10_000), "OSError: "),
        (floating(), "pixels must be integers, got floating point"),
    ],
    ids=["jpeg", "png", "header", "damage", "text", "empty", "bomb", "warning", "float"],
)
def test_a_broken_picture_is_one_line_that_names_it(content, reason, tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(PictureError) as error:
        read(path)
    message = str(error.value)
    assert message.startswith(f"picture must be readable, got picture={path} (")
    assert reason in message
    assert "\n" not in message


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(PictureError, match=r"picture=.*absent\.png \(FileNotFoundError"):
        read(tmp_path / "absent.png")
    with pytest.raises(PictureError, match="IsADirectoryError"):
        read(str(tmp_path))
