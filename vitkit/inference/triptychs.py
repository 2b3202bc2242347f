"""Pictures of a masked autoencoder's reconstructions: original, visible patches, reconstruction.

B images, C channels, H W pixels, h w patches down and across.
"""

import torch
from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from vitkit.data.preprocess import Preprocess
from vitkit.models import MAE, Reconstruction
from vitkit.models.mae import paste_patches
from vitkit.support.contact_sheet import GAP, load_font

MIN_SIDE, TITLE = 112, 18  # pixels: least longer side of an image, and height of a title


GREY = 128  # a hidden patch


@torch.no_grad()
def draw_reconstructions(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], noise: Float[Tensor, "B h w"]
) -> Image.Image:
    """Reconstruct images and draw a row for each: the original, the visible patches, and the reconstruction."""
    images = images.to(model.embed.prefix)
    return draw_triptychs(model, preprocess, images, model(images, noise.to(images.device)))


def draw_triptychs(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], reconstruction: Reconstruction
) -> Image.Image:
    originals = preprocess.denormalise(images)
    grey = originals.new_full(reconstruction.pixels.shape, GREY)
    columns = {
        "original": originals,
        "visible": paste_patches(originals, reconstruction.hidden, grey, model.embed.patch_size),
        "reconstruction": preprocess.denormalise(model.fill_hidden(images, reconstruction)),
    }
    tiles = [enlarge_pixels(pixels) for row in zip(*columns.values(), strict=True) for pixels in row]
    width, height = tiles[0].size
    step = max(width, MIN_SIDE) + GAP, height + GAP  # room for a title
    sheet = Image.new("RGB", (len(columns) * step[0] + GAP, TITLE + len(images) * step[1] + GAP), "white")
    draw, letters = ImageDraw.Draw(sheet), load_font()
    for column, title in enumerate(columns):
        draw.text((GAP + column * step[0], GAP // 2), title, "black", letters)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, len(columns))
        sheet.paste(tile, (GAP + column * step[0], TITLE + GAP + row * step[1]))
    return sheet


def enlarge_pixels(pixels: Tensor) -> Image.Image:
    """Return (C, H, W) bytes as an image; pixels of a small one become squares."""
    array = pixels.movedim(0, -1).cpu().numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).convert("RGB")
    times = -(-MIN_SIDE // max(picture.size))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
