import colorsys
import io
import json
import os
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.data.pixel_values import choose_preprocess, format_pixel_values, survey_pixel_values
from vitkit.data.preprocess import LARGE, RESAMPLING, PictureError, Preprocess, decode_image, read_image
from vitkit.data.sources.source import Files

GREY = Preprocess((4, 6), (0.5,), (0.25,))
RGB = Preprocess((4, 6), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3))


def noise(width, height, channels=3):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8).squeeze())


def list_of(image):
    return list(image.get_flattened_data())


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
def test_non_square_crop_keeps_the_aspect_ratio(size, crop):
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
    assert_close(RGB.stack_pixels([RGB.resize(image)])[0], torch.from_numpy(np.array(image)).permute(2, 0, 1))


def test_transparency_is_laid_over_white():
    image = Image.new("RGBA", (2, 1))
    image.putpixel((0, 0), (255, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 0))
    assert list_of(RGB.convert(image)) == [(255, 0, 0), (255, 255, 255)]
    assert list_of(GREY.convert(image)) == [76, 255]


def test_transparency_of_a_palette_is_laid_over_white():
    image = Image.new("P", (2, 1))
    image.putpalette([9, 9, 9, 0, 0, 255])
    image.putdata([0, 1])
    file = io.BytesIO()
    image.save(file, "PNG", transparency=0)
    assert list_of(RGB.convert(Image.open(file))) == [(255, 255, 255), (0, 0, 255)]


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
        ({"window": (9, 9)}, "window must be two integers (low, high), the first below the second, got window=(9, 9)"),
        ({"background": "grey"}, "background must be one of white, black, contrast, got background=grey"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], message):
    with pytest.raises(ValueError) as error:
        replace(RGB, **change)
    assert message in str(error.value)


def test_settings_survive_json():
    preprocess = Preprocess((4, 6), (0.4, 0.5, 0.6), (0.1, 0.2, 0.3), "bilinear", 0.9)
    for full in (preprocess, replace(preprocess, window=(-1024, 3071), background="contrast")):
        assert Preprocess.from_dict(json.loads(json.dumps(full.to_dict()))) == full


def test_file_without_window_and_background_is_read_as_before_and_written_alike() -> None:
    file = {"size": [4, 6], "mean": [0.5], "std": [0.25], "interpolation": "bicubic", "crop": 1.0}
    assert Preprocess.from_dict(file) == GREY
    assert json.loads(json.dumps(GREY.to_dict())) == file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown=['colour'], missing=[]"),
        ({"crop": None}, "must hold numbers as to_dict writes them"),
        ({"size": [4]}, "must hold numbers as to_dict writes them"),
        ({"mean": "grey"}, "must hold numbers as to_dict writes them"),
        ({"window": [1]}, "must hold numbers as to_dict writes them"),
        ({"window": ["1", "2"]}, "must hold numbers as to_dict writes them"),
        ({"background": ["white"]}, "background must be one of"),
        ({"crop": 7}, "crop must be above 0 and at most 1, got crop=7.0"),
    ],
)
def test_foreign_settings_are_refused(change, message):
    with pytest.raises(ValueError) as error:
        Preprocess.from_dict(GREY.to_dict() | change)
    assert message in str(error.value)


def test_missing_setting_is_refused():
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
        assert read_image(tmp_path / name).tobytes() == upright.tobytes()


@pytest.mark.parametrize("suffix", ["gif", "png", "tiff", "webp", "mpo"])
def test_the_first_of_several_frames_is_read(suffix, tmp_path):
    path = tmp_path / f"picture.{suffix}"
    Image.new("RGB", (8, 8), "white").save(path, save_all=True, append_images=[Image.new("RGB", (8, 8))])
    with Image.open(path) as image:
        assert getattr(image, "n_frames") == 2  # noqa: B009
    assert GREY.convert(read_image(path)).getextrema() == (255, 255)


GREYS = np.array([[0, 128, 129, 257 * 100, 65535]])
EIGHT = [0, 0, 1, 100, 255]


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("<u2", "png"), ("<u2", "tiff"), ("<u2", "pgm"), (">u2", "tiff"), ("<i4", "tiff"), ("<i4", "pgm")],
)
def test_16_bits_are_scaled_to_8(kind, suffix, tmp_path):
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(GREYS.astype(kind)).save(path)
    assert list_of(GREY.convert(read_image(path))) == EIGHT


@pytest.mark.parametrize(("kind", "low"), [("<u2", 0), (">u2", 30_000), ("<i4", -1024)])
def test_window_maps_its_ends_to_black_and_white(kind: str, low: int) -> None:
    image = Image.fromarray((np.array([[-9, 0, 16, 4080, 4090]]) + low).clip(0 if "u" in kind else None).astype(kind))
    assert list_of(replace(GREY, window=(low, low + 4080)).convert(image)) == [0, 0, 1, 255, 255]


def tiff(values: np.ndarray, sample_format: int) -> bytes:
    """Return a TIFF of one row, whose integers have a sign if `sample_format` is 2."""
    tags = {256: values.size, 257: 1, 258: 8 * values.itemsize, 259: 1, 262: 1, 273: 134, 277: 1, 278: 1}
    tags |= {279: values.nbytes, 339: sample_format}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries
    return header.ljust(134, b"\0") + values.astype(values.dtype.newbyteorder("<")).tobytes()


def test_integers_with_a_sign_keep_it() -> None:
    image = decode_image(tiff(np.array([-1024, 0, 3071], np.int16), 2), "scan.tif")
    assert list_of(replace(GREY, window=(-1024, 3071)).convert(image)) == [0, 64, 255]


@pytest.mark.parametrize(
    ("values", "sample_format", "reason"),
    [
        (np.array([-5, 3], np.int8), 2, "integers with a sign must have 16 or 32 bits, got 8; store 16"),
        (np.array([3, 3_000_000_000], np.uint32), 1, "integers of 32 bits must be below 2147483648; store 16 bits"),
    ],
)
def test_integers_that_pillow_misreads_are_refused(values: np.ndarray, sample_format: int, reason: str) -> None:
    with pytest.raises(PictureError, match=reason):
        decode_image(tiff(values, sample_format), "scan.tif")


def draw_square(shade: tuple[int, ...], outline: tuple[int, ...] | None = None) -> Image.Image:
    image = Image.new("RGBA", (300, 300), (*shade, 0))
    image.paste((*shade, 255), (50, 50, 250, 250))
    if outline:
        image.paste((*outline, 255), (50, 50, 250, 56))
    return image


@pytest.mark.parametrize(
    ("image", "background"),
    [
        (draw_square((255, 255, 255)), 0),
        (draw_square((240, 240, 250)), 0),
        (draw_square((255, 255, 255), outline=(0, 0, 0)), 255),
        (draw_square((0, 0, 0)), 255),
        (draw_square((128, 128, 128)), 255),
        (draw_square((255, 255, 255)).convert("LA"), 0),
        (draw_square((255, 255, 255)).convert("LA").convert("La"), 0),
        (draw_square((255, 255, 255)).convert("RGBa"), 0),
        (Image.new("RGBA", (300, 300), (0, 0, 0, 20)), 235),
        (Image.new("RGBA", (300, 300)), 255),
    ],
    ids=["white", "nearly", "outlined", "black", "middle", "LA", "La", "RGBa", "shadow", "empty"],
)
@pytest.mark.parametrize("preprocess", [GREY, RGB])
def test_contrast_lays_what_white_would_hide_over_black(
    image: Image.Image, background: int, preprocess: Preprocess
) -> None:
    pixels = np.asarray(replace(preprocess, background="contrast").convert(image))
    assert (pixels[0, 0] == background).all()
    assert (np.asarray(preprocess.convert(image))[0, 0] >= 235).all()  # an old folder keeps white


def test_integers_of_32_bits_are_clipped_to_16():
    image = Image.fromarray(np.array([[-5, 70_000, 2**31 - 1, 257]], np.int32))
    assert list_of(GREY.convert(image)) == [0, 255, 255, 1]


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def raw_png(width, bits, colour, values):
    header = struct.pack(">IIBBBBB", width, 1, bits, colour, 0, 0, 0)
    row = zlib.compress(b"\0" + np.array(values, f">u{bits // 8}").tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", row) + chunk(b"IEND", b"")


def test_colours_of_16_bits_keep_their_upper_8():
    image = decode_image(raw_png(2, 16, 2, [0x1234, 0xFFFF, 0x00FF, 0x8000, 0x7FFF, 0x0100]), "colours")
    assert list_of(RGB.convert(image)) == [(0x12, 0xFF, 0), (0x80, 0x7F, 1)]


def test_colours_of_16_bits_are_reported(tmp_path):
    (tmp_path / "scan.png").write_bytes(raw_png(1, 16, 2, [4095, 300, 7]))
    survey = survey_pixel_values(Files([str(tmp_path / "scan.png")]), [0], GREY)
    assert choose_preprocess(GREY, survey) == GREY
    assert format_pixel_values(GREY, survey) == [
        "1 of 1 sampled pictures have 16 bits a colour, of which the upper 8 are read, here up to 15; "
        "store them as 8 bits"
    ]


def test_grey_is_luma_and_one_bit_is_black_or_white():
    red, green, blue = np.asarray(noise(40, 30), float).transpose(2, 0, 1)
    assert np.abs(np.asarray(GREY.convert(noise(40, 30))) - (0.299 * red + 0.587 * green + 0.114 * blue)).max() <= 0.51
    bits = Image.fromarray(np.array([[True, False, True]]))
    assert bits.mode == "1"
    assert list_of(GREY.convert(bits)) == [255, 0, 255]


def over_white(pixels, alpha):
    return pixels * (alpha / 255) + 255 - alpha


def saved(image, suffix, **options):
    file = io.BytesIO()
    image.save(file, suffix, **options)
    return file.getvalue()


@pytest.mark.parametrize("suffix", ["PNG", "TIFF", "WEBP"])
def test_half_transparent_colours_are_mixed_with_white(suffix):
    pixels = np.asarray(noise(20, 30, 4))
    content = saved(Image.fromarray(pixels), suffix, **({"lossless": True, "exact": True} if suffix == "WEBP" else {}))
    mixed = np.asarray(RGB.convert(decode_image(content, suffix)))
    assert np.abs(mixed - over_white(pixels[..., :3].astype(float), pixels[..., 3:])).max() <= 1


@pytest.mark.parametrize("mode", ["LA", "PA", "La", "RGBa"])
def test_every_kind_of_alpha_is_mixed_with_white(mode):
    shades, alpha = np.asarray(noise(20, 30, 2), float).transpose(2, 0, 1)
    expected = over_white(shades, alpha)
    if mode in ("La", "RGBa"):  # premultiplied: the shade holds its share already
        shades = np.floor(shades * alpha / 255)
        expected = shades + 255 - alpha
    bands = [Image.fromarray(band.astype(np.uint8)) for band in (shades, alpha)]
    image = Image.merge("RGBa", bands[:1] * 3 + bands[1:]) if mode == "RGBa" else Image.merge("LA", bands)
    if mode == "PA":
        image = image.convert("PA")  # opaque
        image.putalpha(bands[1])
    if mode == "La":
        image = decode_image(saved(Image.merge("LA", bands), "TIFF").replace(*TIFF_ALPHA), "La")
    assert image.mode == mode
    # Dividing by a small alpha and multiplying again loses a level or two.
    assert np.abs(np.asarray(GREY.convert(image)) - expected).max() <= 2
    assert np.abs(np.asarray(RGB.convert(image))[..., 1] - expected).max() <= 2


TIFF_ALPHA = tuple(struct.pack("<HHIHH", 338, 3, 1, kind, 0) for kind in (2, 1))  # ExtraSamples: plain, premultiplied


def test_a_palette_gives_its_colours_and_may_have_an_alpha_for_each():
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([2, 0, 1])
    assert list_of(RGB.convert(decode_image(saved(image, "PNG"), "opaque")))[0] == (70, 80, 90)
    mixed = RGB.convert(decode_image(saved(image, "PNG", transparency=bytes([255, 0, 51])), "alpha"))
    assert list_of(mixed) == [(218, 220, 222), (10, 20, 30), (255, 255, 255)]


def test_one_transparent_shade_is_white():
    image = decode_image(saved(Image.fromarray(np.array([[5, 9]], np.uint8)), "PNG", transparency=5), "shade")
    assert list_of(GREY.convert(image)) == [255, 9]


@pytest.mark.parametrize("suffix", ["TIFF", "JPEG"])
def test_cmyk_becomes_rgb(suffix):
    inks = np.full((16, 16, 4), (40, 90, 160, 50), np.uint8)
    inks[8:] = 200, 0, 30, 0
    content = saved(Image.fromarray(inks, "CMYK"), suffix, **({"quality": 100} if suffix == "JPEG" else {}))
    image = decode_image(content, suffix)
    assert image.mode == "CMYK" and (b"Adobe" in content) == (suffix == "JPEG")
    expected = (255.0 - inks[..., :3]) * (255 - inks[..., 3:]) / 255
    assert np.abs(np.asarray(RGB.convert(image)) - expected).max() <= (2 if suffix == "JPEG" else 1)


def test_ycbcr_becomes_rgb():
    luma, blue, red = (np.asarray(noise(40, 30), float) - (0, 128, 128)).transpose(2, 0, 1)
    colours = luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue
    converted = np.asarray(RGB.convert(Image.fromarray(np.asarray(noise(40, 30)), "YCbCr")))
    assert np.abs(converted - np.stack(colours, axis=2).clip(0, 255)).max() <= 1.01


def test_hsv_becomes_rgb():
    image = Image.fromarray(np.asarray(noise(8, 8)), "HSV")
    expected = [[255 * part for part in colorsys.hsv_to_rgb(*np.array(pixel) / 255)] for pixel in list_of(image)]
    assert np.abs(np.array(list_of(RGB.convert(image))) - expected).max() <= 3


def test_lab_becomes_srgb():
    lab = np.array([[[255, 128, 128], [0, 128, 128], [128, 128, 128], [136, 150, 100], [180, 110, 160]]], np.uint8)
    image = Image.merge("LAB", [Image.fromarray(band) for band in lab.transpose(2, 0, 1)])
    lightness, a, b = (lab * (100 / 255, 1, 1) - (0, 128, 128)).transpose(2, 0, 1)
    y = (lightness + 16) / 116
    roots = np.stack([y + a / 500, y, y - b / 200], axis=2)
    light = np.where(roots > 6 / 29, roots**3, 3 * (6 / 29) ** 2 * (roots - 4 / 29)) * (0.9642, 1, 0.8249)  # D50
    # From D50's XYZ to linear sRGB, adapted by Bradford's matrix (http://www.brucelindbloom.com).
    linear = light @ np.array(
        [[3.1338561, -0.9787684, 0.0719453], [-1.6168667, 1.9161415, -0.2289914], [-0.4906146, 0.0334540, 1.4052427]]
    )
    linear = linear.clip(0, 1)
    expected = 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    assert np.abs(np.asarray(RGB.convert(image)) - expected).max() <= 2


@pytest.mark.parametrize("mode", ["RGBA", "I;16", "CMYK", "P"])
def test_a_large_picture_is_converted_in_strips_like_a_small_one(mode):
    size = 1500, 3000
    assert size[0] * size[1] > LARGE
    greatest, shape = (65535, ()) if mode == "I;16" else (255, () if mode == "P" else (4,))
    values = np.random.default_rng(0).integers(0, greatest, (100, 300, *shape)).astype(np.min_scalar_type(greatest))
    large, tile = (
        Image.fromarray(array, None if mode == "I;16" else mode)
        for array in (np.tile(values, (30, 5, 1)[: values.ndim]), values)
    )
    for image in (large, tile):
        if mode == "P":
            image.putpalette(list(range(256)) * 3)
            image.info["transparency"] = bytes(range(256))
    for preprocess in (GREY, RGB):
        converted = np.asarray(preprocess.convert(tile))
        repeated = np.tile(converted, (30, 5, 1)[: converted.ndim])
        assert np.array_equal(np.asarray(preprocess.convert(large)), repeated)


def test_image_without_conversion_is_not_copied():
    image = noise(4, 4)
    assert RGB.convert(image) is image


def test_only_the_centre_of_a_large_picture_is_computed_to_the_same_pixels():
    preprocess = replace(RGB, size=(64, 48), crop=0.875)
    large = noise(90, 60).resize((2700, 1800), Image.Resampling.BICUBIC)
    assert large.width * large.height > LARGE
    whole = large.resize((109, 73), Image.Resampling.BICUBIC).crop((30, 4, 78, 68))
    difference = np.abs(np.asarray(preprocess.resize(large), int) - np.asarray(whole))
    assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


def test_a_very_long_picture_is_cut_before_it_is_scaled():
    ramp = Image.fromarray(np.where(np.arange(2000) < 1000, 40, 200).astype(np.uint8)[:, None])
    size = (224, 200)
    assert ramp.height * size[1] ** 2 > LARGE
    middle = np.asarray(replace(GREY, size=size).resize(ramp), int)
    assert middle.shape == size and (np.diff(middle, axis=0) >= 0).all()  # bicubic, over one step
    assert abs(middle[:112].mean() + middle[112:].mean() - 240) < 2 and middle[0, 0] < 70 and middle[-1, 0] > 170


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
    return png()[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + png()[33:]


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
        (claims(40_000, 40_000), "DecompressionBombError: "),
        (claims(0, 4), "UnidentifiedImageError: cannot identify image file"),
        (claims(10_000, 10_000), "OSError: "),
        (floating(), "pixels must be integers, got floating point"),
    ],
    ids=["jpeg", "png", "header", "damage", "text", "empty", "bomb", "nothing", "warning", "float"],
)
def test_broken_image_is_one_line_that_names_it(content, reason, tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(PictureError) as error:
        read_image(path)
    message = str(error.value)
    assert message.startswith(f"picture must be readable, got picture={path} (")
    assert reason in message
    assert "\n" not in message


def test_picture_above_pillows_limit_is_read(tmp_path):
    Image.new("1", (20_000, 10_000)).save(tmp_path / "wide.png")
    limit = Image.MAX_IMAGE_PIXELS
    assert read_image(tmp_path / "wide.png").size == (20_000, 10_000)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(PictureError, match=r"picture must be a file that exists, got picture=.*absent\.png$"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(PictureError, match="IsADirectoryError"):
        read_image(str(tmp_path))


def test_invalid_bytes_are_named_in_the_error():
    with pytest.raises(PictureError, match=r"^[^<]*got picture=shard.tar:7.jpg \(UnidentifiedImageError: [^<]*$"):
        decode_image(b"this is a text\n", "shard.tar:7.jpg")


def wrapped(content):
    """An IPTC file, which calls its content JPEG and whose reader takes any."""
    fields = [(3, 60, b"\1\0"), (3, 20, b"\0\4"), (3, 30, b"\0\4"), (3, 120, b"\5"), (8, 10, content)]
    return b"".join(struct.pack(">BBBH", 0x1C, one, two, len(value)) + value for one, two, value in fields)


@pytest.mark.parametrize("name", ["picture.eps", "picture.jpg", "wrapped.jpg"])
def test_no_picture_starts_a_program(name, tmp_path, monkeypatch):
    content = saved(noise(4, 4), "EPS")
    path = tmp_path / name
    path.write_bytes(wrapped(content) if name.startswith("wrapped") else content)
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # what Pillow found before
    with pytest.raises(PictureError, match="(EPS|IPTC) is not read, since other programs would have to; convert it"):
        read_image(path)
    assert not (tmp_path / "started").exists()
    with pytest.raises(Exception), Image.open(path) as image:  # noqa: B017  (the program's failure, whatever it is called)
        image.load()
    assert (tmp_path / "started").exists()


def test_denormalise_inverts_normalise_and_clips() -> None:
    preprocess = Preprocess((16, 16), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)
    assert torch.equal(preprocess.denormalise(preprocess.normalise(pixels)), pixels)
    far = torch.tensor([-100.0, 100.0]).view(2, 1, 1, 1).expand(2, 3, 16, 16)
    assert preprocess.denormalise(far).unique().tolist() == [0, 255]
