"""A CLIP that a collection is embedded with. N pictures or texts, C channels, h w pixels, E embedding."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, UInt8
from PIL import Image
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.bundle.fingerprint import describe_preprocess, describe_tokenizer, digest
from vitkit.convert.open import open_model
from vitkit.inference.embeddings import encode_rows
from vitkit.models.parts import get_inputs, pair_model

PROBE = "a red heart on a white ground"
SAME = 0.9999  # cosine; the rounding to 16 bits is 1e-7 from 1, TensorFloat-32 about 1e-5


class Texts(NamedTuple):
    """`cut` of them did not fit and lost their ends."""

    vectors: Float16[np.ndarray, "N E"]
    cut: int


class Embedder(nn.Module):
    """Pictures and texts -> rows of length 1 and 16 bits: half the disk of 32, with cosines that differ by under 0.001.

    Args: bundle: of a CLIP; its source is what a collection remembers of it.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        model, place = bundle.model, bundle.source
        if get_inputs(model) != ("images", "texts") or bundle.tokenizer is None:
            raise ValueError(f"model must be a CLIP, which reads texts too, got {type(model).__name__}: {place}")
        self.clip = pair_model(model)
        self.preprocess, self.tokenizer, self.place = get_preprocess(bundle), bundle.tokenizer, place

    @classmethod
    def open(cls, source: str | Path) -> "Embedder":
        """Args: source: as `open_model` takes it. A folder is remembered by its absolute path."""
        path = Path(source).expanduser()
        return cls(open_model(source)._replace(source=str(path.resolve()) if path.is_dir() else str(source)))

    @property
    def outputs(self) -> int:
        return self.clip.image.outputs

    @torch.inference_mode()
    def pictures(self, pixels: UInt8[Tensor, "N C h w"]) -> Float16[np.ndarray, "N E"]:
        """Of what `preprocess.pixels` gives."""
        images = self.preprocess.normalise(pixels).to(next(self.clip.image.parameters()))
        return halved(self.clip.encode_image(images))

    def texts(self, texts: Sequence[str]) -> Texts:
        """Equal ones are embedded once; too long ones lose their ends."""
        rows, cut = self.tokenizer.rows(texts)
        return Texts(halved(encode_rows(self.clip, self.tokenizer, rows)), len(cut))

    def picture(self, picture: Image.Image) -> Float16[np.ndarray, " E"]:
        image = self.preprocess.resize(self.preprocess.convert(picture))
        return self.pictures(self.preprocess.pixels([image]))[0]

    def text(self, text: str) -> Float16[np.ndarray, " E"]:
        """A warning tells if it does not fit."""
        vectors, cut = self.texts([text])
        self.tokenizer.judge([text], range(cut))
        return vectors[0]

    def fingerprint(self) -> str:
        """Of what model folders hold, which a later release reads just the same: weights, preprocessing, vocabulary.

        Unlike `vitkit.bundle.fingerprint`, not of the names of our classes: `probe` tells architectures apart.
        """
        description = [describe_preprocess(self.preprocess), describe_tokenizer(self.tokenizer)]
        return digest(description, self.clip.state_dict())

    def probe(self) -> Float[np.ndarray, "2 E"]:
        """What it says of a fixed picture and a fixed text: activations, heads and pooling have no weights."""
        down, across = np.mgrid[:96, :128]
        colours = np.stack([down * 2, across, (down // 8 + across // 8) % 2 * 255], axis=2).astype(np.uint8)
        return np.stack([self.picture(Image.fromarray(colours)), self.text(PROBE)]).astype(np.float32)

    def agrees(self, probe: Float[np.ndarray, "2 D"]) -> bool:
        own = self.probe()
        if own.shape != probe.shape:
            return False
        lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(probe, axis=1)  # 16 bits leave them 1e-4 off 1
        return bool((np.sum(own * probe, axis=1) > SAME * lengths).all())


def halved(vectors: Float[Tensor, "N E"]) -> Float16[np.ndarray, "N E"]:
    """Raises: ValueError where the model gives what is no number, which would be nowhere near anything."""
    if not vectors.isfinite().all():
        raise ValueError("model must give finite vectors, got others; its weights are damaged, or the device's numbers")
    return vectors.cpu().to(torch.float16).numpy()
