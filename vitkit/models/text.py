"""Text towers: from ids to one vector. B batch, T tokens, D width, E embedding."""

from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from vitkit.nn import EndOfText, Learned, TokenEmbed
from vitkit.nn import init as recipes
from vitkit.nn.encoder import Encoder
from vitkit.nn.pool import TextPool


class TextTower(nn.Module):
    """Ids -> encoder -> pool -> linear: the text half of CLIP (https://arxiv.org/abs/2103.00020, section 2.4).

    Args:
        context: the largest number of ids; a pool of whole texts, such as Last, needs all texts padded to it.
        outputs: 0 for no head: the output is the pooled token.
        pool: EndOfText, which needs a causal encoder, or Last.
        head: called with the width of the encoder and `outputs`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("texts",)

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: int = 49408,
        context: int = 77,
        outputs: int = 512,
        *,
        table: Callable[[int, tuple[int]], nn.Module] = Learned,
        pool: Callable[[], TextPool] = EndOfText,
        head: Callable[[int, int], nn.Module] = nn.Linear,
        init: Callable[[nn.Module], None] = recipes.clip,
    ) -> None:
        super().__init__()
        self.embed = TokenEmbed(encoder.dim, vocabulary, context, table=table)
        self.encoder = encoder
        self.pool = pool()
        self.whole = self.pool.whole
        if not (self.whole or encoder.causal):
            kind = type(self.pool).__name__
            raise ValueError(f"encoder must be causal for {kind}, else it attends to padding; or take pool=Last")
        self.outputs = outputs or encoder.dim
        self.head = head(encoder.dim, outputs) if outputs else nn.Identity()
        init(self)

    def features(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the tokens. Raises: ValueError for texts above the context, or not padded to it as `whole` needs."""
        if self.whole and ids.shape[1] != self.embed.context:
            raise ValueError(f"ids must be padded to context={self.embed.context}, got {ids.shape[1]} in a row")
        return self.encoder(*self.embed(ids))

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B E"]:
        return self.head(self.pool(self.features(ids), ids))
