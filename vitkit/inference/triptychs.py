"""Reconstructions of a masked autoencoder as images: original, visible patches, reconstruction.

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

SMALLEST, TITLE = 112, 18  # pixels: the longer side of a picture in a triptych at least, the height of a title


GREY = 128  # a hidden patch


@torch.no_grad()
def reconstructions(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], noise: Float[Tensor, "B h w"]
) -> Image.Image:
    """A row for each picture: the original, what the encoder sees, and what the decoder makes of the rest."""
    images = images.to(model.embed.prefix)
    return triptychs(model, preprocess, images, model(images, noise.to(images.device)))


def triptychs(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], found: Reconstruction
) -> Image.Image:
    originals = preprocess.denormalise(images)
    grey = originals.new_full(found.pixels.shape, GREY)
    columns = {
        "original": originals,
        "visible": paste_patches(originals, found.hidden, grey, model.embed.patch_size),
        "reconstruction": preprocess.denormalise(model.fill_hidden(images, found)),
    }
    tiles = [enlarged(pixels) for row in zip(*columns.values(), strict=True) for pixels in row]
    width, height = tiles[0].size
    step = max(width, SMALLEST) + GAP, height + GAP  # a title needs its room
    sheet = Image.new("RGB", (len(columns) * step[0] + GAP, TITLE + len(images) * step[1] + GAP), "white")
    draw, letters = ImageDraw.Draw(sheet), load_font()
    for column, title in enumerate(columns):
        draw.text((GAP + column * step[0], GAP // 2), title, "black", letters)
    for place, tile in enumerate(tiles):
        row, column = divmod(place, len(columns))
        sheet.paste(tile, (GAP + column * step[0], TITLE + GAP + row * step[1]))
    return sheet


def enlarged(pixels: Tensor) -> Image.Image:
    """(C, H, W) bytes, each a square of pixels where there are few."""
    array = pixels.movedim(0, -1).cpu().numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).convert("RGB")
    times = -(-SMALLEST // max(picture.size))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
