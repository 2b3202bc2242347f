"""Bytes of UTF-8 as ids. No package and no file is needed."""

from vitkit.data.vocabularies.vocabulary import END, Margin, Vocabulary


class RawBytes(Vocabulary):
    """The 256 bytes under their numbers, and 256 for the end of a text."""

    size, begin, finish, pad = 257, (), (256,), 256
    special = {END: 256}

    @property
    def margin(self) -> Margin:
        return Margin.NONE

    def encode(self, text: str) -> list[int]:
        return [*text.encode()]

    def has_name(self, name: str) -> bool:
        return name in self.special

    def spell(self, number: int) -> bytes:
        return bytes([number]) if number < 256 else b""
