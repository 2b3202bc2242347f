"""Retrieval among the images and captions of a training. N images, U captions, E embedding."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.data.annotations.captions import Captioned, normalise_caption
from vitkit.data.data_module import get_rank_and_world
from vitkit.data.order import Pick, draw_samples
from vitkit.data.pairs import Pairs
from vitkit.data.tokenizer import Tokenizer
from vitkit.evaluation.recall import Retrieval, pair_captions, retrieve
from vitkit.inference.embeddings import encode_rows
from vitkit.losses.ranks import gather_objects
from vitkit.models import CLIP

UNUSED_EPOCH = -1  # no epoch of a training has this number, so its augmentations are new


def retrieve_held_out(
    source: Captioned,
    indices: Sequence[int],
    images: Float[Tensor, "N E"],
    texts: Sequence[str],
    embeddings: Float[Tensor, "U E"],
) -> Retrieval:
    """Retrieve among readable images and their captions.

    Args: texts, embeddings: captions and their embeddings, which include all captions of these images.
    """
    captions, pairs = pair_captions([source.captions[index] for index in indices])
    rows = {normalise_caption(text): row for row, text in enumerate(texts)}
    columns = torch.tensor([rows[normalise_caption(text)] for text in captions], device=embeddings.device)
    return retrieve(indices, images, captions, embeddings[columns].to(images.device), pairs)


def encode_texts_by_rank(model: CLIP, tokenizer: Tokenizer, texts: Sequence[str]) -> Float[Tensor, "U E"]:
    """Encode a share of the texts on each rank, and return the embeddings of all."""
    rank, world = get_rank_and_world()
    parts = gather_objects([encode_rows(model, tokenizer, tokenizer.encode_and_cut(texts[rank::world])[0]).cpu()])
    features = parts[0].new_empty(len(texts), parts[0].shape[1])
    for start, part in enumerate(parts):
        features[start::world] = part
    return features


@torch.no_grad()
def retrieve_varied(model: CLIP, data: Pairs, most: int, device: torch.device) -> Retrieval:
    """Retrieve among at most `most` training images, augmented with the seeds of an unused epoch."""
    indices: list[int] = []
    images: list[Tensor] = []
    samples = draw_samples(data.training, most)
    for start in range(0, len(samples), data.batch):
        batch = data.training_pictures[[Pick(UNUSED_EPOCH, sample) for sample in samples[start : start + data.batch]]]
        indices += batch.indices.tolist()
        images.append(model.encode_image(batch.images.to(device)))
    captions, pairs = pair_captions([data.captioned.captions[index] for index in indices])
    texts = encode_rows(model, data.tokenizer, data.tokenizer.encode_and_cut(captions)[0])
    return retrieve(indices, torch.cat(images), captions, texts, pairs)
