from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.data.demo.built_in import load_digits
from vitkit.data.pixel_values import IMAGES, choose_preprocess, choose_window, format_pixel_values, survey_pixel_values
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources.source import Files

GREY = Preprocess((4, 6), (0.5,), (0.25,))


@pytest.mark.parametrize(
    ("values", "window"),
    [
        ((3, 4000), (0, 4095)),
        ((2000, 4095), (0, 4095)),
        ((0, 255), (0, 255)),
        ((0, 1), (0, 1)),
        ((30_000, 34_000), (30_000, 34_000)),
        ((-1024, 3071), (-1024, 3071)),
        ((0, 100_000), (0, 131_071)),
        ((0, 65_535), None),
        ((10, 33_000), None),
        ((7, 7), None),
    ],
)
def test_window_is_the_range_that_values_use(values: tuple[int, int], window: tuple[int, int] | None) -> None:
    assert choose_window(np.array(values)) == window


def write_images(folder: Path, count: int, draw: Callable[[int], Image.Image], suffix: str = "png") -> Files:
    for index in range(count):
        draw(index).save(folder / f"{index:03}.{suffix}")
    return Files([str(folder / f"{index:03}.{suffix}") for index in range(count)])


def draw_scan(index: int) -> Image.Image:
    return Image.fromarray(np.array([[index, 4000]], np.uint16))


def draw_drawing(index: int) -> Image.Image:
    image = Image.new("RGBA", (9, 9), (255, 255, 255, 0))
    image.paste((255, 255, 255, 255) if index % 2 else (0, 0, 0, 255), (3, 3, 6, 6))
    return image


class Watched(Files):
    """Files that count what is decoded."""

    decoded = 0

    def read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        self.decoded += 1
        return super().read_image(index, at_least)


def test_a_bounded_sample_of_deep_images_is_measured(tmp_path: Path) -> None:
    source = Watched(write_images(tmp_path, IMAGES + 9, draw_scan).files)
    survey = survey_pixel_values(source, range(len(source)), GREY)
    assert source.decoded == survey.images == len(survey.grey) == IMAGES
    preprocess = choose_preprocess(GREY, survey)
    assert preprocess == replace(GREY, window=(0, 4095))
    assert format_pixel_values(preprocess, survey) == [
        "64 of 64 sampled pictures are grey of more than 8 bits, with values from 0 to 4000; "
        "preprocess.window = [0, 4095]"
    ]


def test_images_of_8_bits_are_not_decoded_and_change_nothing(tmp_path: Path) -> None:
    colours = write_images(tmp_path, 3, lambda index: Image.new("RGB", (4, 4), (index, 2, 3)))
    greys = write_images(tmp_path, 3, lambda index: Image.new("L", (4, 4), index), "jpg")
    source = Watched([*colours.files, *greys.files])
    survey = survey_pixel_values(source, range(6), GREY)
    assert source.decoded == 0 and choose_preprocess(GREY, survey) == GREY and not format_pixel_values(GREY, survey)
    digits = load_digits()  # its content is no file
    assert survey_pixel_values(digits, range(9), GREY)[1:] == ([], [], [])


def test_opaque_alpha_and_a_transparent_shade_of_16_bits_count_as_no_transparency(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 255, 255, 255)).save(tmp_path / "opaque.png")
    draw_scan(0).save(tmp_path / "shade.png", transparency=0)
    files = [str(tmp_path / "opaque.png"), str(tmp_path / "shade.png")]
    assert survey_pixel_values(Files(files), range(2), GREY).hidden == []


def test_window_of_the_user_is_kept_and_what_it_clips_is_reported(tmp_path: Path) -> None:
    source = write_images(tmp_path, 4, draw_scan)
    for window, end in (((0, 3999), "clips 50.0% of them"), ((0, 65535), "99 % are from 0 to 4000, which may be")):
        preprocess = replace(GREY, window=window)
        survey = survey_pixel_values(source, range(4), preprocess)
        assert choose_preprocess(preprocess, survey) == preprocess
        assert end in format_pixel_values(preprocess, survey)[0]


def test_drawings_that_white_would_hide_are_counted(tmp_path: Path) -> None:
    survey = survey_pixel_values(write_images(tmp_path, 6, draw_drawing), range(6), GREY)
    preprocess = choose_preprocess(GREY, survey)
    assert preprocess == replace(GREY, background="contrast")
    assert format_pixel_values(preprocess, survey) == [
        "6 of 6 sampled pictures are transparent, and white would hide 3 of them; preprocess.background = contrast"
    ]
    white = replace(GREY, background="white")
    assert choose_preprocess(white, survey) == white
