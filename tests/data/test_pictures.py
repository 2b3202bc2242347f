import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from torchvision.transforms import v2

from vitkit.data.batches import Reading, read_batches, read_paths
from vitkit.data.order import Pick, TrainingOrder
from vitkit.data.pictures import Augmentation, ImageReading, Loader, Pictures
from vitkit.data.preprocess import PictureError, Preprocess
from vitkit.data.sources.arrays import Arrays
from vitkit.data.sources.source import Files
from vitkit.support.errors import InputWarning

GREY = Preprocess((8, 12), (0.5,), (0.25,))
RGB = Preprocess((32, 32), (0.0,) * 3, (1.0,) * 3)
exact = partial(assert_close, rtol=0, atol=0)


def picks(count, copy=0):
    return [Pick(0, sample, copy) for sample in range(count)]


@pytest.fixture
def folder(tmp_path):
    """Ten pictures, of which the fourth is a text and the eighth is cut short."""
    files = [str(tmp_path / f"{number}.png") for number in range(10)]
    for number, file in enumerate(files):
        Image.new("L", (20, 20), 25 * number).save(file)
    Path(files[3]).write_text("not a picture")
    Path(files[7]).write_bytes(Path(files[7]).read_bytes()[:50])
    return files


def source(files, several=False):
    labels = [number % 3 for number in range(len(files))]
    return Files(files, "abc", [(label, 2) for label in labels] if several else labels)


def test_unreadable_images_are_skipped_and_listed(folder):
    batch = Pictures(source(folder), GREY, reading=ImageReading(on_error="skip"))[picks(10)]
    assert batch.indices.tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
    assert batch.labels.tolist() == [0, 1, 2, 1, 2, 0, 2, 0]
    expected = torch.tensor([25.0 * index for index in batch.indices]).view(-1, 1, 1, 1) / 255
    assert_close(batch.images, ((expected - 0.5) / 0.25).expand(8, 1, 8, 12))
    assert [line.split(" (")[0] for line in batch.skipped] == [
        f"picture must be readable, got picture={folder[number]}" for number in (3, 7)
    ]
    assert not any("\n" in line for line in batch.skipped)


@pytest.mark.parametrize("several", [False, True])
def test_a_batch_without_a_readable_picture_is_empty(several, folder):
    batch = Pictures(
        source(folder, several),
        GREY,
        reading=ImageReading(on_error="skip"),
        augment=Augmentation(tensors=(v2.RandomErasing(),)),
    )[[Pick(0, 3)]]
    assert batch.images.shape == (0, 1, 8, 12)
    assert batch.labels.shape == ((0, 3) if several else (0,))
    assert batch.labels.dtype == (torch.bool if several else torch.int64)
    assert batch.indices.tolist() == [] and len(batch.skipped) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_skip_the_same_pictures_and_raise_the_same_error(workers, folder):
    order = TrainingOrder(range(10), 4, 0)
    batches = list(Loader(Pictures(source(folder), GREY, reading=ImageReading(on_error="skip")), order, workers))
    assert [len(batch.images) + len(batch.skipped) for batch in batches] == [4, 4, 2]
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == [0, 1, 2, 4, 5, 6, 8, 9]
    names = sorted(line.split("picture=")[1].split(" ")[0] for batch in batches for line in batch.skipped)
    assert names == [folder[3], folder[7]]
    with pytest.raises(PictureError, match=rf"^picture must be readable, got picture={Path(folder[0]).parent}/[37]"):
        list(Loader(Pictures(source(folder), GREY), order, workers))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """The same 4000x3000 photograph as a JPEG, turned on its side by EXIF, and as a PNG of 400x300."""
    root = tmp_path_factory.mktemp("photographs")
    image = Image.radial_gradient("L").resize((4000, 3000))
    image.save(root / "upright.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(root / "sideways.jpg", exif=exif)
    image.resize((400, 300)).save(root / "small.png")
    return Files([str(root / name) for name in ("upright.jpg", "sideways.jpg", "small.png")], "ab", [0, 1, 0])


@pytest.mark.parametrize(
    ("reduce", "upright", "sideways"),
    [
        (None, (4000, 3000), (3000, 4000)),
        (1.0, (500, 375), (375, 500)),
        (2.0, (1000, 750), (750, 1000)),
        (4.0, (2000, 1500), (1500, 2000)),
    ],
)
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(reduce, upright, sideways, photographs):
    at_least = Pictures(
        photographs, Preprocess((224, 224), (0.5,) * 3, (0.5,) * 3), reading=ImageReading(reduce=reduce)
    ).at_least
    sizes = [photographs.read_image(index, at_least).size for index in range(3)]
    assert sizes == [upright, sideways, (400, 300)]


@pytest.mark.parametrize("at_least", [(375, 500), (376, 500), (375, 501), (500, 375), (501, 300), (1600, 900), (3, 5)])
def test_no_side_gets_smaller_than_asked(at_least, photographs):
    for index in range(2):
        width, height = photographs.read_image(index, at_least).size
        assert height >= at_least[0] and width >= at_least[1]
        whole = photographs.read_image(index).size
        smaller = {divisor: (-(-whole[0] // divisor), -(-whole[1] // divisor)) for divisor in (2, 4, 8)}
        left = [size for size in smaller.values() if size[0] < width and size[0] >= at_least[1] + 1]
        assert not [size for size in left if size[1] >= at_least[0] + 1]  # nor any larger than it needs to be


def test_reduced_image_gives_nearly_the_same_tensor(photographs):
    preprocess = Preprocess((64, 64), (0.0,) * 3, (1.0,) * 3)
    whole, reduced = (
        Pictures(photographs, preprocess, reading=ImageReading(reduce=reduce))[picks(2)].images
        for reduce in (None, 2.0)
    )
    assert 0 < (whole - reduced).abs().max() < 4 / 255


def test_reduction_accounts_for_the_crop(photographs):
    preprocess = Preprocess((200, 100), (0.5,), (0.5,), crop=0.5)
    assert Pictures(photographs, preprocess, reading=ImageReading(reduce=1.5)).at_least == (600, 300)


RAMPS = np.stack([*np.meshgrid(np.arange(256), np.arange(256)), np.full((256, 256), 100)], axis=2).astype(np.uint8)
COUNT = 400
SAME = Arrays("ramps", np.broadcast_to(RAMPS, (COUNT, *RAMPS.shape)), "a", [0] * COUNT)


def drawn(*augment, seed=0):
    """400 variants of a picture whose red grows to the right and whose green grows downwards, in 0..255."""
    return 255 * Pictures(SAME, RGB, augment=Augmentation(augment), seed=seed)[picks(COUNT)].images


def test_flips_come_at_their_rate():
    for rate in (0.5, 0.2):
        images = drawn(v2.RandomHorizontalFlip(rate))
        flipped = images[:, 0, 0, 0] > images[:, 0, 0, -1]
        assert abs(flipped.float().mean().item() - rate) < 4 * (rate * (1 - rate) / COUNT) ** 0.5


def test_random_crops_cover_their_areas_evenly():
    # At other proportions the largest are drawn again, since they would not fit.
    images = drawn(v2.RandomResizedCrop(32, (0.08, 1.0), (1.0, 1.0), interpolation=v2.InterpolationMode.BICUBIC))
    sides = (images[:, :2].amax((2, 3)) - images[:, :2].amin((2, 3))) / 255 * 32 / 31  # between centres of pixels
    areas = sides.prod(1)
    uniform = torch.linspace(0.08, 1, COUNT)
    assert areas.min() > 0.06 and areas.max() < 1.05
    assert (areas.sort().values - uniform).abs().max() < 0.1  # Kolmogorov-Smirnov, p < 1e-3


def test_colours_are_jittered_over_the_whole_range():
    factors = drawn(v2.ColorJitter(brightness=0.5))[:, 2].mean((1, 2)) / 100
    assert factors.min() < 0.55 and factors.max() > 1.45
    assert abs(factors.mean() - 1) < 4 * (1 / 12 / COUNT) ** 0.5


def test_randaugment_changes_nearly_every_picture():
    changed = (drawn(v2.RandAugment(2, 9)) != drawn()).flatten(1).any(1).float().mean()
    assert 0.8 < changed < 1  # two of 14 operations, one of which does nothing and some of which rarely do


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_erasing_comes_at_its_rate(rate):
    erased = Pictures(SAME, RGB, augment=Augmentation(tensors=(v2.RandomErasing(rate, value=-7.0),)))[
        picks(COUNT)
    ].images
    marked = (erased == -7).flatten(1).float().mean(1)
    assert abs((marked > 0).float().mean().item() - rate) < 4 * (rate * (1 - rate) / COUNT) ** 0.5
    assert marked[marked > 0].min() > 0.01 and marked.max() < 0.35  # 2 to 33 % of the area
    exact(erased[marked == 0], Pictures(SAME, RGB)[picks(COUNT)].images[marked == 0])


VARIED = {
    "augment": Augmentation(
        (v2.RandomResizedCrop(32), v2.RandAugment(), v2.ColorJitter(0.3)), (v2.RandomErasing(0.5, value="random"),)
    ),
}


def test_batches_do_not_depend_on_the_number_of_workers():
    loaders = [Loader(Pictures(SAME, RGB, **VARIED), TrainingOrder(range(40), 8, 0), workers) for workers in (0, 2)]
    for one, other in zip(*loaders, strict=True):
        exact(one, other)


def test_augmentation_depends_on_copy_and_seed_only():
    pictures = Pictures(SAME, RGB, **VARIED)
    first, again = pictures[picks(8)].images, pictures[picks(8)[::-1]].images.flip(0)
    exact(first, again)
    others = [pictures[picks(8, copy=1)].images, Pictures(SAME, RGB, **VARIED, seed=1)[picks(8)].images]
    for other in others:
        assert (first != other).flatten(1).any(1).all()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_every_test_image_of_pillow_is_read_or_listed(workers):
    """Two epochs of whatever files are below the folder, of any name."""
    folder = os.environ.get("VITKIT_PILLOW_IMAGES")
    if not folder:
        pytest.skip("VITKIT_PILLOW_IMAGES must name Tests/images of Pillow's source distribution")
    files = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())
    everything = Files(files, "ab", [number % 2 for number in range(len(files))])
    pictures = Pictures(
        everything,
        RGB,
        reading=ImageReading(reduce=2.0, on_error="skip"),
        augment=Augmentation((v2.RandomResizedCrop(32), v2.RandomHorizontalFlip())),
    )
    loader = Loader(pictures, order := TrainingOrder(range(len(files)), 32, 0), workers)
    for epoch in range(2):
        order.set_epoch(epoch)
        batches = list(loader)
        indices = sorted(index for batch in batches for index in batch.indices.tolist())
        skipped = sorted(line for batch in batches for line in batch.skipped)
        assert len(indices) + len(skipped) == len(files) == len({*indices}) + len({*skipped})
        assert all(batch.images.isfinite().all() for batch in batches)
        assert not [line for line in skipped if "\n" in line or "picture must be readable, got picture=" not in line]
    del loader
    who = resource.RUSAGE_CHILDREN if workers else resource.RUSAGE_SELF
    print(
        f"{len(indices)} read, {len(skipped)} not; at most {resource.getrusage(who).ru_maxrss / 1e6:.2f} GB a process"
    )


def test_pictures_far_below_the_size_of_the_model_are_counted_in_one_warning(tmp_path: Path) -> None:
    preprocess, reading = Preprocess((32, 64), (0.5,), (0.5,)), Reading(batch=2)
    files = [str(tmp_path / f"{width}x{height}.png") for width, height in ((1, 1), (9, 9), (4, 2), (3, 9), (9, 1))]
    for file in files:
        width, height = map(int, Path(file).stem.split("x"))
        Image.new("L", (width, height)).save(file)
    message = "pictures smaller than 2 x 4 pixels (h, w), which show next to nothing at the model's 32 x 64: 3 of 5, "
    message += ", ".join(files[index] for index in (0, 3, 4))
    for batches in (
        read_paths(files, preprocess, reading, None),
        read_batches(Files(files), range(5), preprocess, reading, None),
    ):
        with pytest.warns(InputWarning) as notes:
            assert len([*batches]) == 3
        assert [str(note.message) for note in notes] == [message]
    assert len([*read_paths(files[1:3], preprocess, reading, None)]) == 1  # without a warning
