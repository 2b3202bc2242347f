"""Regular expressions of known tokenizers are accepted, and those whose time may grow faster than a text are not."""

import random
import time

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from vitkit.data.vocabularies.split_patterns import EQUAL, check_pattern

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
KNOWN = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "CLIP": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "Llama 3": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Qwen 2": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "GPT-4o": rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDINGS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDINGS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek V3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek, CJK": "[一-龥\u3040-ゟ゠-ヿ]+",
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "Falcon": "[0-9][0-9][0-9]",
    "digits": r"\p{N}{1,3}",
    "T5": " {2,}",
    "SigLIP": r"\s+",
    "cl100k": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "Qwen 3.5": ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "BART, DeBERTa": r"\s{2,}|[\n\r\t]",
    "SeamlessM4T": r"^▁+$",
    "of SentencePiece": EQUAL[r"\A +| +\z"],
    "of SentencePiece, inside": EQUAL[r" +▁"],
    "user-defined pieces": r"<mask>|\[gMASK\]|\n\n|\.\.\.",
}
SLOW = {
    "nested repetition": (r"(a+)+b", "a group must not be repeated, got '(a+)+b'"),
    "words": (r"(\w+\s?)*;", "a group must not be repeated"),
    "repetition of a choice": (r"(a|aa)+b", "a group must not be repeated"),
    "counted repetition of a group": (r"(a|b){2,9}", "a group must not be repeated"),
    "repetition of a lookahead": (r"(?=a)*b", "a group must not be repeated"),
    "Ruby's {1,3}+ is ({1,3})+": (r"\p{N}{1,3}+x", "a repetition must not be repeated"),
    "repetition of a repetition": (r"a**", "a repetition must not be repeated"),
    "counted twice": (r"a{1,3}{1,3}", "it must hold characters, classes and plain groups alone"),
    "many repetitions": (r"\s*\s*\s*\s*x", "a sequence must have at most 1 repetition"),
    "inside groups": (r"(\s*)(\s*)x", "a sequence must have at most 1 repetition"),
    "many optional parts": ("a?" * 30 + "a" * 30, "64 ways through it"),
    "many choices": ("(a|a)" * 30 + "b", "64 ways through it"),
    "long counts": (r"a{1,200}a{1,200}a{1,200}a{1,200}", "a sequence must have at most 1 repetition"),
    "overlapping repetitions": (r"\w*\w*\w*;", "at most 1 repetition, of no group, in front of a required part"),
    "two overlapping repetitions": (r"\w*\w+;", "at most 1 repetition"),
    "one repetition at each place": (r"\w*;", "that gives '\\\\w' back must stand before one that takes all"),
    "taken in small parts": (r"\w*;|\w|\w+", "must stand before one that takes all of it"),
    "taken from another class": (r"\w*;|\d+", "must stand before one that takes all of it"),
    "given back in a group": (r"(\w+)?;|\w+", "at most 1 repetition, of no group"),
    "given back at each line": (r"^\s*x", "must stand before one that takes all of it"),
    "looked for at each place": (r"(?=\w+)a", "what is looked for without being taken must not be repeated"),
    "reluctant": (r"\w+?", "a repetition must take as much as it can"),
    "a great demand": (r"a{9999,}", "a repetition must demand at most 16"),
    "a reference": (r"(a*)\1b", "it must hold characters, classes and plain groups alone"),
    "a named group": (r"(?<n>a)\g<n>", "plain groups alone"),
    "recursion": (r"(?<n>a|b\g<n>c)", "plain groups alone"),
    "a conditional": (r"(a)?(?(1)b|c)", "plain groups alone"),
    "an absent group": (r"(?~abc)", "plain groups alone"),
    "a comment": (r"(?#a)b", "plain groups alone"),
    "text segments": (r"\X+", "plain groups alone"),
    "depth": ("(" * 50 + "a" + ")" * 50, "nested at most 8 deep"),
    "an open group": ("(a", "a group must be closed"),
    "an open class": ("[a", "a class must be closed"),
    "a bracket": ("a)", "it must be a regular expression"),
    "length": ("a" * 5000, "at most 4,096 characters, got 5,000"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_patterns_are_accepted(name: str) -> None:
    check_pattern(KNOWN[name])
    split = pre_tokenizers.Split(Regex(KNOWN[name]), "isolated")
    start = time.process_time()
    split.pre_tokenize_str("A cat's  12345 dogs;\r\n\t漢字 x" * 100)
    assert time.process_time() - start < 1


@pytest.mark.parametrize("name", SLOW)
def test_patterns_that_may_be_slow_are_refused(name: str) -> None:
    pattern, message = SLOW[name]
    start = time.process_time()
    with pytest.raises(ValueError, match="pattern must ") as raised:
        check_pattern(pattern)
    assert time.process_time() - start < 0.1
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("run", ["a", "A", "\u02b0", " ", "\n", " \n", "1", ".", "\u4e00", "▁", "'s"])
def test_known_patterns_take_time_in_proportion(name: str, run: str) -> None:
    """Runs of what is repeated, with and without the part that comes behind."""
    split = pre_tokenizers.Split(Regex(KNOWN[name]), "isolated")
    start = time.process_time()
    split.pre_tokenize_str(run * 10_000 + "\0x ;▁")
    assert time.process_time() - start < 1


@pytest.mark.parametrize("pattern", EQUAL)
def test_replacement_patterns_are_equivalent(pattern: str) -> None:
    generator = random.Random(0)
    for _ in range(2000):
        text = "".join(generator.choices(" ▁\n", [6, 1, 1], k=generator.randrange(9)))
        before, after = (
            normalizers.Replace(Regex(some), "_").normalize_str(text) for some in (pattern, EQUAL[pattern])
        )
        assert before == after
