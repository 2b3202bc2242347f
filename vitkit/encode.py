"""Many texts through a text tower without computing anything twice. N texts, E embedding."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitkit.models import CLIP
from vitkit.tokens import Tokenizer


@torch.no_grad()
def encode_texts(
    model: CLIP,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    batch: int = 256,
    tell: Callable[[int], object] = lambda done: None,
) -> Float[Tensor, "N E"]:
    """Rows of length 1, on the model's device: equal texts are encoded once, texts of about one length together.

    Args: tell: is called after each batch with the number of texts in it.
    """
    rows, _ = tokenizer.rows(texts)
    order = sorted(set(map(tuple, rows)), key=lambda row: (len(row), row))
    places = {row: place for place, row in enumerate(order)}
    encoded: list[Tensor] = []
    for start in range(0, len(order), batch):
        ids = tokenizer.padded(order[start : start + batch]).to(model.log_scale.device)
        encoded.append(model.encode_text(ids))
        tell(len(ids))
    features = torch.cat(encoded) if encoded else model.log_scale.new_zeros(0, model.text.outputs)
    return features[torch.tensor([places[tuple(row)] for row in rows], dtype=torch.int64, device=features.device)]
