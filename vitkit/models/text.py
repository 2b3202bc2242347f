"""Text models: a tower makes one vector of a text, a decoder continues it.

B batch, T tokens, S tokens of a memory, D width, M memory width, E embedding, V vocabulary, A position axes.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor, nn

from vitkit.nn import Cache, EndOfText, Learned, TokenEmbed
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


class Prompt(NamedTuple):
    """The embedded tokens that a text is continued from. Padding stands in front and is False in `valid`.

    Args:
        mask: among these tokens alone. A causal layer adds its own.
        ids: of texts, -1 for other tokens such as padding and images; for edits of logits by earlier ids.
    """

    x: Float[Tensor, "B T D"]
    positions: Real[Tensor, "#B T A"]
    valid: Bool[Tensor, "B T"] | None = None
    mask: Bool[Tensor, "#B 1 T T"] | None = None
    memory: Float[Tensor, "B S M"] | None = None
    memory_mask: Bool[Tensor, "B 1 1 S"] | None = None
    ids: Int[Tensor, "B T"] | None = None


class TextDecoder(nn.Module):
    """Ids -> encoder -> logits of the next id (GPT-2, https://cdn.openai.com/better-language-models/language_models.pdf).

    Args:
        encoder: causal, unless every call has a mask; with `memory_dim` it attends to another sequence too.
        context: the largest number of ids.
        scale: multiplies the embeddings of ids, as in TokenEmbed.
        logit_scale: multiplies the features before the matrix of logits: D^-1/2 in a tied T5.
        tied: take the embeddings of ids as the matrix of logits. It is one parameter.
    """

    inputs: ClassVar[tuple[str, ...]] = ("texts",)

    def __init__(
        self,
        encoder: Encoder,
        vocabulary: int = 50257,
        context: int = 1024,
        *,
        table: Callable[[int, tuple[int]], nn.Module] = Learned,
        scale: float = 1.0,
        logit_scale: float = 1.0,
        tied: bool = True,
        init: Callable[[nn.Module], None] = recipes.vit,
    ) -> None:
        super().__init__()
        self.embed = TokenEmbed(encoder.dim, vocabulary, context, table=table, scale=scale)
        self.encoder, self.logit_scale = encoder, logit_scale
        self.head = None if tied else nn.Linear(encoder.dim, vocabulary, bias=False)
        init(self)

    def features(
        self,
        x: Float[Tensor, "B T D"],
        positions: Real[Tensor, "#B T A"],
        *,
        mask: Bool[Tensor, "#B #H #T #keys"] | None = None,
        memory: Float[Tensor, "B S M"] | None = None,
        memory_mask: Bool[Tensor, "#B #H #T #S"] | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Encode embedded tokens. With a cache, x holds only the new ones."""
        return self.encoder(x, positions, mask=mask, memory=memory, memory_mask=memory_mask, cache=cache)

    def logits(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        x = features * self.logit_scale
        return F.linear(x, self.embed.tokens.weight) if self.head is None else self.head(x)

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        positions: Int[Tensor, "#B T 1"] | None = None,
        *,
        mask: Bool[Tensor, "#B #H #T #T"] | None = None,
        memory: Float[Tensor, "B S M"] | None = None,
        memory_mask: Bool[Tensor, "#B #H #T #S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return the logits of the id after each. Args: positions, mask: for padded or packed texts; see TokenEmbed."""
        x, places = self.embed(ids, positions)
        return self.logits(self.features(x, places, mask=mask, memory=memory, memory_mask=memory_mask))

    def prompt(
        self,
        ids: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None = None,
        *,
        memory: Float[Tensor, "B S M"] | None = None,
        memory_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Prompt:
        """Embed the texts to continue. Positions count their valid ids.

        Args: valid: False for the padding in front of the shorter texts.

        Raises: ValueError for padding behind a text, and for texts without ids.
        """
        if not ids.shape[1]:
            raise ValueError(
                f"ids must hold at least one id to continue, got {tuple(ids.shape)}; begin with the end id"
            )
        if valid is not None and (valid[:, :-1] & ~valid[:, 1:]).any():
            raise ValueError("valid must be False only in front of a text, got padding behind one; pad on the left")
        positions = None if valid is None else (valid.cumsum(1) - 1).clamp(min=0)[..., None]
        x, positions = self.embed(ids, positions)
        texts = ids if valid is None else ids.masked_fill(~valid, -1)
        return Prompt(x, positions, valid, memory=memory, memory_mask=memory_mask, ids=texts)
