"""Parts that the converters of transformers' language models share. D width, V vocabulary."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.convert import config_slots
from vitkit.convert.config_slots import Part, read_part
from vitkit.convert.differences import compute_difference
from vitkit.convert.hf.converter import LeftOut
from vitkit.convert.overrides import Conversion
from vitkit.data.tokenizer import Tokenizer
from vitkit.models import TextDecoder
from vitkit.models.parts import find_context

DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")


def check_architectures(hf_config: Mapping[str, Any], *known: str) -> None:
    """Raise ValueError unless a config.json names one of these classes, or none."""
    names = hf_config.get("architectures") or [known[0]]
    if not (isinstance(names, list) and len(names) == 1 and names[0] in known):
        config_slots.refuse_problems(
            "config.json", [f"architectures must be one of {', '.join(known)}, got {names!r:.80}"]
        )


def make_decoder_config(
    encoder: Mapping[str, Any], vocabulary: int, context: int, *, tied: bool, learned: bool
) -> dict[str, Any]:
    """Return the config of a TextDecoder. Args: learned: whether it has a table of positions."""
    args = {"encoder": encoder, "vocabulary": vocabulary, "context": context, "tied": tied}
    if not learned:
        args["table"] = "vitkit.nn.NoPositions"
    return {"class_path": "vitkit.models.TextDecoder", "init_args": args}


def make_decoder_checks(decoder: Mapping[str, Any], encoder: Part) -> dict[str, object]:
    """Return the rules of all language models of transformers, and whether they hold."""
    return {
        "encoder must be causal": encoder.args["causal"],
        "encoder must have a final_norm": encoder.args["final_norm"],
        f"scale must be 1, got scale={decoder['scale']}": decoder["scale"] == 1,
        f"logit_scale must be 1, got logit_scale={decoder['logit_scale']}": decoder["logit_scale"] == 1,
    }


def get_decoder_args(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Part]:
    """Return the arguments of a TextDecoder, and its encoder."""
    args = read_part(config).args
    return args, read_part(args["encoder"])


def remove_tied_head(state: dict[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Return a TextDecoder's state without the head that some files hold a second time.

    Raises: ValueError for a head that differs from the embeddings.
    """
    if not tied or "head.weight" not in state:
        return state
    state = dict(state)
    if not torch.equal(state.pop("head.weight"), state["embed.tokens.weight"]):
        raise ValueError("lm_head.weight must equal the embeddings with tie_word_embeddings, got other numbers")
    return state


def find_dropout(state: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> LeftOut:
    """Return a note on the rates of dropout, which are dropped."""
    rates = [f"{name}={hf_config[name]}" for name in DROPOUT if hf_config.get(name)]
    return LeftOut(notes=(f"left out, as they are for training: {', '.join(rates)}",) if rates else ())


def write_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids in a config.json at which transformers begins and ends texts."""
    vocabulary = tokenizer.vocabulary
    begin = vocabulary.begin[0] if vocabulary.begin else vocabulary.end
    return {"bos_token_id": begin, "eos_token_id": vocabulary.end, "pad_token_id": vocabulary.pad}


def compare_logits(hf_model: Any, model: nn.Module, conversion: Conversion) -> float:
    """Return the largest difference of logits for random texts."""
    context, vocabulary = find_context(model) or 1, read_part(conversion.config).args["vocabulary"]
    ids = torch.randint(vocabulary, (2, min(context, 32)), generator=torch.Generator().manual_seed(0))
    return compute_difference(hf_model(ids).logits, model(ids))


MODELS = (TextDecoder,)
