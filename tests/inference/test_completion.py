from pathlib import Path

import pytest
import torch

import vitkit
from vitkit.convert.open import open_model, open_text_decoder
from vitkit.data.tokenizer import Tokenizer
from vitkit.generation import beam, generate
from vitkit.inference.completion import complete, cut_pieces, decode_behind, stream_completion
from vitkit.models import TextDecoder

PROMPTS = ["Once upon", "", "café"]


def test_completions_are_decoded_continuations(decoder_folder: Path) -> None:
    bundle = open_model(decoder_folder)
    decoder, tokenizer = bundle.model, bundle.tokenizer
    assert isinstance(decoder, TextDecoder) and tokenizer is not None
    completions = complete(bundle, PROMPTS, 12, device="cpu")
    for prompt, (completion,) in zip(PROMPTS, completions, strict=True):
        ids = torch.tensor([tokenizer.encode([prompt])[0] or [256]])  # an empty prompt begins behind an end
        expected = generate(decoder, decoder.prompt(ids), 12, stop=[256])
        assert completion.ids == tuple(expected.ids[0].tolist())
        assert completion.text == tokenizer.decode(completion.ids)
        assert completion.score == pytest.approx(expected.scores.item(), rel=1e-5)
        assert sum(completion.log_probs) == pytest.approx(completion.score, rel=1e-5)
        ((best,),) = complete(bundle, prompt, 12, beams=3, alpha=0.5, device="cpu")
        assert best.ids == tuple(beam(decoder, decoder.prompt(ids), 12, beams=3, alpha=0.5, stop=[256]).ids[0].tolist())


def test_streamed_pieces_are_the_completion(decoder_folder: Path) -> None:
    def draw() -> vitkit.Sampling:
        return vitkit.Sampling(0.9, generator=torch.Generator().manual_seed(3))

    pieces = [*stream_completion(decoder_folder, "Once", 20, sample=draw(), device="cpu")]
    ((whole,),) = complete(decoder_folder, "Once", 20, sample=draw(), device="cpu")
    assert "".join(pieces) == whole.text and len(pieces) > 1


def test_text_ends_in_front_of_a_stop_string(decoder_folder: Path) -> None:
    ((whole,),) = complete(decoder_folder, "Once", 20, device="cpu")
    stop = whole.text[5:8]
    cut = whole.text[: whole.text.index(stop)]
    (first,), (second,) = complete(decoder_folder, ["Once", "and so on"], 20, stop=["nowhere", stop], device="cpu")
    assert first.text == cut and len(first.ids) < len(whole.ids)
    assert first.ids == whole.ids[: len(first.ids)]
    ((alone,),) = complete(decoder_folder, "and so on", 20, stop=[stop], device="cpu")
    assert second.ids == alone.ids
    assert "".join(stream_completion(decoder_folder, "Once", 20, stop=[stop], device="cpu")) == cut


def test_beginning_of_a_stop_string_is_held_back() -> None:
    pieces = ["a <", "|st", "op", " more"]
    assert "".join(cut_pieces(iter(pieces), ["<|stop"])) == "a "
    assert "".join(cut_pieces(iter(pieces), ["<|stopped", "x"])) == "a <|stop more"
    assert "".join(cut_pieces(iter(pieces), ["more", "st"])) == "a <|"
    assert [*cut_pieces(iter(["a", "b"]), [])] == ["a", "b"]


def test_space_between_prompt_and_continuation_is_kept() -> None:
    tokenizer = Tokenizer()  # its words end with a space
    prompt, new = tokenizer.encode(["a red", "heart of gold"])
    assert "".join(decode_behind(tokenizer, prompt, new)) == " heart of gold"
    assert "".join(decode_behind(tokenizer, [], new)) == "heart of gold"


def test_default_number_of_steps_fills_the_context(decoder_folder: Path) -> None:
    ((completion,),) = complete(decoder_folder, "x" * 40, device="cpu")
    assert len(completion.ids) == 8 or completion.ids[-1] == 256


def test_unusable_input_is_a_clear_error(decoder_folder: Path, text_folder: Path) -> None:
    with pytest.raises(ValueError, match="context of 48, got 48 ids of 'xx.*'; shorten the prompt to at most 47 ids$"):
        complete(decoder_folder, "x" * 48)
    with pytest.raises(ValueError, match="context of 48, got 9 ids of 'Once upon' and steps=40"):
        complete(decoder_folder, PROMPTS, 40)
    with pytest.raises(ValueError, match="beams must be 1 with sample, edits, stop or samples, got beams=2"):
        complete(decoder_folder, "x", beams=2, stop=["."])
    with pytest.raises(ValueError, match="prompts must hold at least one text"):
        complete(decoder_folder, [])
    with pytest.raises(ValueError, match="stop must hold strings of at least one character"):
        complete(decoder_folder, "x", stop=[""])
    with pytest.raises(
        ValueError, match=r"model must be a TextDecoder, which continues texts, got TextTower in .*text"
    ):
        open_text_decoder(text_folder)
