"""Pictures of a masked autoencoder's reconstructions: original, visible patches, patch means, reconstruction.

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

MIN_SIDE, LINE = 112, 18  # pixels: least longer side of an image, and height of a line of text
GREY = 128  # a hidden patch


@torch.no_grad()
def draw_reconstructions(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], noise: Float[Tensor, "B h w"]
) -> Image.Image:
    """Reconstruct images and draw a row for each, as `draw_sheet`."""
    images = images.to(model.embed.prefix)
    return draw_sheet(model, preprocess, images, model(images, noise.to(images.device)))


def draw_sheet(
    model: MAE, preprocess: Preprocess, images: Float[Tensor, "B C H W"], reconstruction: Reconstruction
) -> Image.Image:
    """Draw the original, the visible patches, the patch means alone (a baseline) and the reconstruction of each image.

    Only the original shows anything of the hidden pixels. Lines below the images say what is interpolated.
    """
    originals = preprocess.denormalise(images)
    grey = originals.new_full(reconstruction.pixels.shape, GREY)
    columns = {
        "original": originals,
        "visible": paste_patches(originals, reconstruction.hidden, grey, model.embed.patch_size),
        "patch means alone": preprocess.denormalise(model.fill_means(images, reconstruction.hidden)),
        "reconstruction": preprocess.denormalise(model.fill_hidden(images, reconstruction)),
    }
    tiles = [enlarge_pixels(pixels) for row in zip(*columns.values(), strict=True) for pixels in row]
    width, height = tiles[0].size
    step = max(width, MIN_SIDE) + GAP, height + GAP  # room for a title
    caption, bottom = describe_hidden(model), LINE + len(images) * step[1] + GAP
    sheet = Image.new("RGB", (len(columns) * step[0] + GAP, bottom + len(caption) * LINE), "white")
    draw, letters = ImageDraw.Draw(sheet), load_font()
    for column, title in enumerate(columns):
        draw.text((GAP + column * step[0], GAP // 2), title, "black", letters)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, len(columns))
        sheet.paste(tile, (GAP + column * step[0], LINE + GAP + row * step[1]))
    for number, line in enumerate(caption):
        draw.text((GAP, bottom + number * LINE), line, "black", letters)
    return sheet


def describe_hidden(model: MAE) -> tuple[str, ...]:
    """Return what is drawn in hidden patches, in lines that fit below four images."""
    means = "Patch means alone: interpolated from the visible patches, without the model."
    if not model.norm_pix:
        return (means,)
    return means, "Reconstruction: the model's patterns, with interpolated mean and contrast."


def enlarge_pixels(pixels: Tensor) -> Image.Image:
    """Return (C, H, W) bytes as an image; pixels of a small one become squares."""
    array = pixels.movedim(0, -1).cpu().numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).convert("RGB")
    times = -(-MIN_SIDE // max(picture.size))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
