"""What a change inside a model does to its answer, picture by picture.

B batch, K classes, or the width of a vector.
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

# Gets answers (B, K) before and after, and labels, -1 where there is none; gives by their names a number for each
# picture, or for each that has a label.
Effect = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]


def one_class(
    before: Float[Tensor, "B K"], after: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]
) -> dict[str, Tensor]:
    """Changes of the logit and probability of the labelled class (of the class predicted before, where there is no
    label), and of being right, of pictures with a label; and whether another class is predicted."""
    return of_classes(before, after, labels, (before.softmax(1), after.softmax(1)))


def several_classes(
    before: Float[Tensor, "B K"], after: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]
) -> dict[str, Tensor]:
    """As `one_class`, of a model with a sigmoid for each class."""
    return of_classes(before, after, labels, (before.sigmoid(), after.sigmoid()))


def vectors(
    before: Float[Tensor, "B K"], after: Float[Tensor, "B K"], labels: Int64[Tensor, " B"]
) -> dict[str, Tensor]:
    """How far the vector of a picture turns: 1 - cosine."""
    return {"turn": 1 - F.cosine_similarity(before, after)}


def of_classes(
    before: Tensor, after: Tensor, labels: Tensor, probabilities: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    labels = labels.to(before.device)
    predicted, then = before.argmax(1), after.argmax(1)
    target = predicted.where(labels < 0, labels)[:, None]
    found = {
        "logit": (after - before).gather(1, target)[:, 0],
        "probability": (probabilities[1] - probabilities[0]).gather(1, target)[:, 0],
        "flips": (then != predicted).double(),
    }
    if (known := labels >= 0).any():
        found["accuracy"] = ((then == labels).double() - (predicted == labels).double())[known]
    return found
