import pytest

from vitkit.support.errors import format_count


@pytest.mark.parametrize(
    ("count", "plural", "text"),
    [
        (1, "pictures", "1 picture"),
        (0, "pictures", "0 pictures"),
        (1234, "classes", "1,234 classes"),
        (1, "classes", "1 class"),
        (1, "matches", "1 match"),
        (1, "hidden files and folders", "1 hidden file or folder"),
        (1, "samples that could not be read", "1 sample that could not be read"),
        (1, "different captions", "1 different caption"),
        (1, "sequences of pages or frames", "1 sequence of pages or frames"),
    ],
)
def test_unit_of_one_is_singular(count: int, plural: str, text: str) -> None:
    assert format_count(count, plural) == text
