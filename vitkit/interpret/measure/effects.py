"""Effects of an edit on a model's output, image by image.

B batch, K classes, or the width of an embedding.
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

# Gets outputs (B, K) before and after, and labels, -1 for none; returns by name a number for each image, or for each
# labelled one.
Effect = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]
EFFECT_TITLES = {"probability": "probability", "turn": "cosine distance"}  # for tables and figures


def measure_class_effect(
    before: Float[Tensor, "B K"], after: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]
) -> dict[str, Tensor]:
    """Return the changes of the target's logit and probability, of accuracy, and the flips of the predicted class.

    The target is the label, or the class predicted before for an image without one. Accuracy is of labelled images.
    """
    return _compare_classes(before, after, labels, (before.softmax(1), after.softmax(1)))


def measure_multilabel_effect(
    before: Float[Tensor, "B K"], after: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]
) -> dict[str, Tensor]:
    """Return what `measure_class_effect` does, for a model with a sigmoid for each class."""
    return _compare_classes(before, after, labels, (before.sigmoid(), after.sigmoid()))


def measure_embedding_effect(
    before: Float[Tensor, "B K"], after: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]
) -> dict[str, Tensor]:
    """Return the cosine distance between the embeddings before and after, 1 - cosine similarity, as "turn"."""
    return {"turn": 1 - F.cosine_similarity(before, after)}


def _compare_classes(
    before: Tensor, after: Tensor, labels: Tensor, probabilities: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    labels = labels.to(before.device)
    predicted_before, predicted_after = before.argmax(1), after.argmax(1)
    target = predicted_before.where(labels < 0, labels)[:, None]
    effects = {
        "logit": (after - before).gather(1, target)[:, 0],
        "probability": (probabilities[1] - probabilities[0]).gather(1, target)[:, 0],
        "flips": (predicted_after != predicted_before).double(),
    }
    if (known := labels >= 0).any():
        effects["accuracy"] = ((predicted_after == labels).double() - (predicted_before == labels).double())[known]
    return effects
