from collections import Counter

import numpy as np
import torch
from PIL import Image, ImageOps

from vitkit.data.augment import ThreeAugment

GENERATOR = np.random.default_rng(0)
PHOTO = Image.fromarray(GENERATOR.integers(0, 256, (24, 32, 3), np.uint8))


def kind(image: Image.Image) -> str:
    pixels = np.asarray(image)
    if (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 1] == pixels[..., 2]).all():
        return "grey"
    return "solarised" if image.tobytes() == ImageOps.solarize(PHOTO, 128).tobytes() else "blurred"


def test_each_of_the_three_comes_a_third_of_the_time() -> None:
    torch.manual_seed(0)
    augment = ThreeAugment(jitter=0.0)
    counts = Counter(kind(augment(PHOTO)) for _ in range(600))
    assert set(counts) == {"grey", "solarised", "blurred"}
    assert all(160 < count < 240 for count in counts.values())  # 200 +- 3.5 standard deviations


def test_the_blur_smooths_and_the_jitter_varies() -> None:
    spreads = []
    for seed in range(40):
        torch.manual_seed(seed)
        plain = ThreeAugment(jitter=0.0)(PHOTO)
        if kind(plain) == "blurred":
            spreads.append(np.asarray(plain).std())
        torch.manual_seed(seed)
        assert ThreeAugment()(PHOTO).tobytes() != plain.tobytes()
    assert min(spreads) < 0.5 * np.asarray(PHOTO).std() and len({*spreads}) == len(spreads)


def test_grey_pictures_stay_grey() -> None:
    for seed in range(9):
        torch.manual_seed(seed)
        assert ThreeAugment()(PHOTO.convert("L")).mode == "L"
