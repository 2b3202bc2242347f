from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data.preprocess import Preprocess, decode_image
from vitkit.interpret.maps.geometry import Frame
from vitkit.interpret.maps.layout import Layout

LAYOUT = Layout(("cls",), (3, 4), (8, 8))
SIZE = (24, 32)


def preprocessing(crop: float, interpolation: str = "bilinear") -> Preprocess:
    return Preprocess(SIZE, (0.5,) * 3, (0.5,) * 3, interpolation, crop)


def painted(photo: tuple[int, int], box: tuple[float, ...]) -> Image.Image:
    """Black, but for a white rectangle: all pixels whose middle lies in the box."""
    pixels = np.zeros((photo[1], photo[0], 3), np.uint8)
    left, top, right, bottom = (int(np.ceil(side - 0.5)) for side in box)
    pixels[top:bottom, left:right] = 255
    return Image.fromarray(pixels)


def bright(image: torch.Tensor) -> torch.Tensor:
    """(h, w): how much of each patch of the model's image is white, from 0 to 1."""
    return ((image[0] + 1) / 2).unflatten(0, (3, 8)).unflatten(2, (4, 8)).mean(dim=(1, 3))


@pytest.mark.parametrize("crop", [1.0, 0.875, 0.7])
@pytest.mark.parametrize("photo", [(640, 480), (480, 640), (900, 300), (301, 907), (512, 384), (64, 48), (2600, 1900)])
@pytest.mark.parametrize("patch", [(0, 0), (1, 3)])
def test_painting_a_patch_box_changes_that_patch_alone(
    photo: tuple[int, int], crop: float, patch: tuple[int, int]
) -> None:
    preprocess = preprocessing(crop)
    frame = Frame.from_preprocess(preprocess, photo, LAYOUT)
    result = bright(preprocess(painted(photo, frame.get_patch_box(*patch))))
    expected = torch.zeros(3, 4)
    expected[patch] = 1
    # Resampling blurs a border by a pixel of 8, and small photos have no finer pixels.
    assert (result - expected).abs().max() < 0.15
    assert ((result > 0.5) == (expected > 0)).all()


@pytest.mark.parametrize("photo", [(640, 480), (480, 640), (2600, 1900), (1900, 2600)])
def test_box_is_the_models_crop_to_the_pixel(photo: tuple[int, int]) -> None:
    """A photo that is its own coordinates, read back at the corners of the model's image."""
    width, height = photo
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    preprocess = preprocessing(0.875)
    pixels = np.stack([x, y, y], -1) * 255
    image = (preprocess(Image.fromarray(pixels.round().astype(np.uint8))) + 1) / 2
    left, top, right, bottom = Frame.from_preprocess(preprocess, photo, LAYOUT).box
    middles = (
        (torch.arange(32) + 0.5) / 32 * (right - left) + left,
        (torch.arange(24) + 0.5) / 24 * (bottom - top) + top,
    )
    byte = 1.01 / 255  # of rounding, twice
    assert (image[0, 12, 1:-1] - middles[0][1:-1] / width).abs().max() < byte
    assert (image[1, 1:-1, 16] - middles[1][1:-1] / height).abs().max() < byte


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright, preprocess = (400, 300), preprocessing(0.875)
    frame = Frame.from_preprocess(preprocess, upright, LAYOUT)
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Transpose that undoes what EXIF asks a viewer for
    photo = painted(upright, frame.get_patch_box(2, 1))
    stored = photo if orientation == 1 else photo.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(file := BytesIO(), "png", exif=exif)
    image = decode_image(file.getvalue(), "photo.png")
    assert image.size == upright
    assert bright(preprocess(image)).argmax() == 2 * 4 + 1
    assert np.array_equal(np.asarray(image), np.asarray(photo))


@pytest.mark.parametrize("photo", [(640, 480), (301, 907)])
def test_upsampled_patch_fills_its_box(photo: tuple[int, int]) -> None:
    frame = Frame.from_preprocess(preprocessing(0.875), photo, LAYOUT)
    one = torch.zeros(3, 4)
    one[1, 2] = 1
    spread = frame.upsample(one)
    assert spread.shape == (photo[1], photo[0])
    assert np.array_equal(spread == 1, np.asarray(painted(photo, frame.get_patch_box(1, 2)))[..., 0] > 0)
    assert np.array_equal(~np.isnan(spread), np.asarray(painted(photo, frame.box))[..., 0] > 0)


def test_find_patch_inverts_get_patch_box() -> None:
    frame = Frame.from_preprocess(preprocessing(0.875), (640, 480), LAYOUT)
    for row in range(3):
        for column in range(4):
            left, top, right, bottom = frame.get_patch_box(row, column)
            for x, y in (
                (left + 0.1, top + 0.1),
                (right - 0.1, bottom - 0.1),
                ((left + right) / 2, (top + bottom) / 2),
            ):
                assert frame.find_patch(x, y) == (row, column)
    assert frame.get_patch_box(0, 0)[:2] == frame.box[:2]
    assert frame.get_patch_box(2, 3)[2:] == pytest.approx(frame.box[2:])
    left, top, right, bottom = frame.box
    middle = (left + right) / 2, (top + bottom) / 2
    for x, y in ((left - 1, middle[1]), (right + 1, middle[1]), (middle[0], top - 1), (middle[0], bottom + 1)):
        assert frame.find_patch(x, y) is None


def test_box_without_crop_is_the_whole_photo() -> None:
    assert Frame.from_preprocess(preprocessing(1.0), (64, 48), LAYOUT).box == (0, 0, 64, 48)
    assert Frame.from_preprocess(preprocessing(1.0), (128, 48), LAYOUT).box == (32, 0, 96, 48)


def test_mismatched_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="patches must fill"):
        Frame.from_preprocess(preprocessing(1.0), (640, 480), Layout((), (3, 3), (8, 8)))
    frame = Frame.from_preprocess(preprocessing(1.0), (640, 480), LAYOUT)
    with pytest.raises(ValueError, match="map must be of the grid"):
        frame.upsample(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="patch must be inside the grid of 3 x 4"):
        frame.get_patch_box(3, 0)
