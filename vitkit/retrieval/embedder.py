"""The CLIP of a collection. N pictures or texts, C channels, h w pixels, E embedding."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float16, UInt8
from PIL import Image
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_preprocess
from vitkit.bundle.fingerprint import compute_digest, describe_preprocess, describe_tokenizer
from vitkit.convert.open import open_model
from vitkit.inference.embeddings import encode_rows
from vitkit.models.parts import get_inputs, require_pair_model

PROBE = "a red heart on a white ground"
SAME = 0.9999  # least cosine of equal models: rounding to 16 bits leaves it 1e-7 off 1, TensorFloat-32 about 1e-5

# The size and the times, in ns, of the last change of the content and of the entry of each file in a model folder.
Stamps = dict[str, list[int]]


class TextVectors(NamedTuple):
    """Embeddings of texts, of which `cut` did not fit and were truncated."""

    vectors: Float16[np.ndarray, "N E"]
    cut: int


class Embedder(nn.Module):
    """A CLIP whose embeddings have norm 1 and 16 bits: half the disk space of 32, with cosines less than 0.001 off.

    Args:
        bundle: of a CLIP; a collection stores its source.
        stamps: of the files of its folder, from `read_stamps`; None for a model that is not read from a folder.
    """

    def __init__(self, bundle: Bundle, stamps: Stamps | None = None) -> None:
        super().__init__()
        model, source = bundle.model, bundle.source
        if get_inputs(model) != ("images", "texts") or bundle.tokenizer is None:
            raise ValueError(f"model must be a CLIP, which reads texts too, got {type(model).__name__}: {source}")
        self.clip = require_pair_model(model)
        self.preprocess, self.tokenizer, self.source = get_preprocess(bundle), bundle.tokenizer, source
        self.stamps = stamps

    @classmethod
    def open(cls, source: str | Path) -> "Embedder":
        """Open a CLIP. Args: source: as for `open_model`; of a folder the absolute path is kept."""
        path = Path(source).expanduser()
        if not path.is_dir():
            return cls(open_model(source)._replace(source=str(source)))
        stamps = read_stamps(path)  # first: of files that change meanwhile they must not be the new ones
        return cls(open_model(source)._replace(source=str(path.resolve())), stamps)

    @property
    def outputs(self) -> int:
        return self.clip.image.outputs

    @torch.inference_mode()
    def embed_pixels(self, pixels: UInt8[Tensor, "N C h w"]) -> Float16[np.ndarray, "N E"]:
        """Embed images from `preprocess.stack_pixels`."""
        images = self.preprocess.normalise(pixels).to(next(self.clip.image.parameters()))
        return round_vectors(self.clip.encode_image(images))

    def embed_texts(self, texts: Sequence[str]) -> TextVectors:
        """Embed texts, equal ones once; those that are too long are truncated."""
        rows, cut = self.tokenizer.encode_and_cut(texts)
        return TextVectors(round_vectors(encode_rows(self.clip, self.tokenizer, rows)), len(cut))

    def embed_picture(self, picture: Image.Image) -> Float16[np.ndarray, " E"]:
        image = self.preprocess.resize(self.preprocess.convert(picture))
        return self.embed_pixels(self.preprocess.stack_pixels([image]))[0]

    def embed_text(self, text: str) -> Float16[np.ndarray, " E"]:
        """Embed a text, with a warning if it does not fit."""
        vectors, cut = self.embed_texts([text])
        self.tokenizer.check_cut([text], range(cut))
        return vectors[0]

    def compute_fingerprint(self) -> str:
        """Return a digest of the weights, the preprocessing and the vocabulary, which later releases read unchanged.

        Unlike `vitkit.bundle.fingerprint`, it leaves out class names: `embed_probe` tells architectures apart.
        """
        description = [describe_preprocess(self.preprocess), describe_tokenizer(self.tokenizer)]
        return compute_digest(description, self.clip.state_dict())

    def embed_probe(self) -> Float[np.ndarray, "2 E"]:
        """Embed a fixed picture and text: unlike weights, embeddings depend on activation, heads and pooling."""
        down, across = np.mgrid[:96, :128]
        colours = np.stack([down * 2, across, (down // 8 + across // 8) % 2 * 255], axis=2).astype(np.uint8)
        return np.stack([self.embed_picture(Image.fromarray(colours)), self.embed_text(PROBE)]).astype(np.float32)

    def matches_probe(self, stored: Float[np.ndarray, "2 D"]) -> bool:
        probe = self.embed_probe()
        if probe.shape != stored.shape:
            return False
        norms = np.linalg.norm(probe, axis=1) * np.linalg.norm(stored, axis=1)  # 16 bits leave them 1e-4 off 1
        return bool((np.sum(probe * stored, axis=1) > SAME * norms).all())


def read_stamps(folder: Path) -> Stamps:
    """Return the stamps of the files in a model folder. A new content gives a new one, even if its time is set back."""
    stats = {file.name: file.stat() for file in sorted(folder.iterdir()) if file.is_file()}
    return {name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats.items()}


def round_vectors(vectors: Float[Tensor, "N E"]) -> Float16[np.ndarray, "N E"]:
    """Return vectors in 16 bits. Raises: ValueError if they are not finite: no query would find them."""
    if not vectors.isfinite().all():
        raise ValueError("model must give finite vectors, got others; its weights are damaged, or the device's numbers")
    return vectors.cpu().to(torch.float16).numpy()
