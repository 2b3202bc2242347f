from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image
from torchvision.transforms import v2

from vitkit.data.augment import RandomErasing, RandomResizedCrop, ThreeAugment

GENERATOR = np.random.default_rng(0)
PHOTO = Image.fromarray(GENERATOR.integers(0, 256, (24, 32, 3), np.uint8))


def kind(image: Image.Image) -> str:
    pixels = np.asarray(image)
    if (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 1] == pixels[..., 2]).all():
        return "grey"
    return "solarised" if image.tobytes() == ImageOps.solarize(PHOTO, 128).tobytes() else "blurred"


def test_three_augment_applies_each_a_third_of_the_time() -> None:
    torch.manual_seed(0)
    augment = ThreeAugment(jitter=0.0)
    counts = Counter(kind(augment(PHOTO)) for _ in range(600))
    assert set(counts) == {"grey", "solarised", "blurred"}
    assert all(160 < count < 240 for count in counts.values())  # 200 +- 3.5 standard deviations


def test_blur_smooths_and_jitter_changes_colours() -> None:
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


def test_random_erasing_puts_noise_on_a_rectangle_at_its_rate() -> None:
    torch.manual_seed(0)
    erase, image = RandomErasing(p=0.25), torch.full((3, 24, 32), 5.0)
    varied = [erase(image) for _ in range(400)]
    varied = [one for one in varied if not torch.equal(one, image)]
    parts = [(one != 5).any(0) for one in varied]
    assert 70 < len(parts) < 130
    shares = torch.tensor([part.float().mean().item() for part in parts])
    assert shares.min() > 0.01 and 0.25 < shares.max() < 0.4
    noise = torch.cat([one[:, part].flatten() for one, part in zip(varied, parts, strict=True)])
    assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05


@pytest.mark.parametrize("size", [(24, 36), (224, 160)])
def test_random_resized_crop_takes_torchvisions_crops(size: tuple[int, int]) -> None:
    photo = Image.fromarray(load_sample_image("flower.jpg"))  # 640 x 427
    bicubic = v2.InterpolationMode.BICUBIC
    fast, peer = RandomResizedCrop(size), v2.RandomResizedCrop(size, interpolation=bicubic)
    for seed in range(12):
        torch.manual_seed(seed)
        ours = np.asarray(fast(photo), dtype=int)
        torch.manual_seed(seed)
        theirs = np.asarray(peer(photo), dtype=int)
        assert ours.shape == (*size, 3)
        assert np.abs(ours - theirs).mean() < 0.7
