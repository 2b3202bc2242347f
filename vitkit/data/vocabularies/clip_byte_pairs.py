"""CLIP's vocabulary of 49,408 ids, which open_clip ships. https://arxiv.org/abs/2103.00020"""

from functools import cache

from vitkit.data.vocabularies.openclip_tokenizers import import_openclip_tokenizers
from vitkit.data.vocabularies.vocabulary import Margin, Vocabulary

# The pattern of CLIP's code without its special tokens, which no text may spell.
# A word ends after 1,000 letters, far beyond any context: the time of merging grows with their square.
WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]{1,1000}|[\p{N}]|[^\s\p{L}\p{N}]{1,1000}"


class BytePairs(Vocabulary):
    """Byte pairs of texts in lower case, with HTML unescaped and white space joined."""

    def __init__(self) -> None:
        import regex

        self.pairs = import_openclip_tokenizers().SimpleTokenizer()
        # The tokenizer's own pattern would read "<end_of_text>" in a text as its end.
        self.pairs.pat = regex.compile(WORD, regex.IGNORECASE)
        self.pairs.cache.clear()
        self.begin, self.finish, self.pad = (self.pairs.sot_token_id,), (self.pairs.eot_token_id,), 0
        self.special = {"<start>": self.begin[0], "<end>": self.end}
        self.size = self.pairs.vocab_size

    @property
    def margin(self) -> Margin:
        return Margin.BACK

    def encode(self, text: str) -> list[int]:
        return self.pairs.encode(text)

    def has_name(self, name: str) -> bool:
        return name in self.special or name in self.pairs.encoder

    def spell(self, number: int) -> bytes:
        if number in (*self.begin, *self.finish):
            return b""
        token = self.pairs.decoder[number]
        word = token.removesuffix("</w>")
        return bytes(self.pairs.byte_decoder[sign] for sign in word) + b" " * (word != token)


@cache
def load_clip_vocabulary() -> BytePairs:
    return BytePairs()
