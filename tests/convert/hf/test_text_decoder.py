"""Hugging Face's GPT-2 and Llama with random parameters, in and out."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitkit.bundle import model_config, weights
from vitkit.convert.export_targets import find_export_targets
from vitkit.convert.hf import gpt2_config, llama_config
from vitkit.convert.hf.model_types import find_reader, find_writer
from vitkit.convert.importer import import_model
from vitkit.convert.layout_detection import detect_layout
from vitkit.convert.open import open_model
from vitkit.convert.weight_files import WeightFile
from vitkit.convert.write import export_to
from vitkit.data.tokenizer import Tokenizer
from vitkit.data.vocabularies.tokenizer_format import format_raw_bytes
from vitkit.models import TextDecoder
from vitkit.nn import masks

transformers = pytest.importorskip("transformers")

GPT2 = {"vocab_size": 257, "n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 4}
GPT2 |= {"bos_token_id": 256, "eos_token_id": 256, "attn_implementation": "eager"}
LLAMA = {"vocab_size": 257, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 40}
LLAMA |= {"bos_token_id": 256, "eos_token_id": 256, "attn_implementation": "eager"}
REFERENCES: Mapping[str, Callable[[], Any]] = {
    "GPT-2": lambda: make_gpt2(),
    "GPT-2 with its own head": lambda: make_gpt2(tie_word_embeddings=False, n_inner=50, layer_norm_epsilon=0.1),
    "GPT-2 with ReLU": lambda: make_gpt2(activation_function="relu"),
    "Llama": lambda: make_llama(),
    "Llama, tied": lambda: make_llama(tie_word_embeddings=True, rms_norm_eps=0.1),
    "Llama with biases": lambda: make_llama(attention_bias=True, mlp_bias=True, num_key_value_heads=6),
    "Llama of other frequencies": lambda: make_llama(
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, head_dim=10
    ),
}


def make_gpt2(**options: Any) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**GPT2, **options}))


def make_llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **options}))


def get_hf_config(model: Any) -> dict[str, Any]:
    return {**model.config.to_dict(), "architectures": [type(model).__name__]}


def convert(state: Mapping[str, Tensor], hf_config: Mapping[str, Any]) -> TextDecoder:
    converter = find_reader(hf_config["model_type"])
    model = model_config.build_model(converter.read_config(hf_config)).double().eval()
    weights.load(model, converter.to_vitkit(state, hf_config))
    assert isinstance(model, TextDecoder)
    return model


def compare(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours, theirs, rtol=0, atol=1e-9 if ours.dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", REFERENCES)
@torch.no_grad()
def test_logits_are_equal_in_both_directions(name: str, randomise: Callable[[nn.Module], Any]) -> None:
    # transformers computes parts of Llama in float32, and its attention to padding is NaN in float64.
    dtype = torch.float64 if name.startswith("GPT-2") else torch.float32
    reference = randomise(REFERENCES[name]()).to(dtype)
    ids, valid = torch.randint(257, (3, 11)), torch.ones(3, 11, dtype=torch.bool)
    valid[0, :4] = valid[1, :1] = False
    hf_config = get_hf_config(reference)
    model = convert(reference.state_dict(), hf_config).to(dtype)
    compare(model(ids), reference(ids).logits)
    prompt = model.prompt(ids, valid)
    logits = model.logits(model.features(prompt.x, prompt.positions, mask=masks.padding(valid)))
    expected = reference(ids, attention_mask=valid.long(), position_ids=prompt.positions[..., 0]).logits
    compare(logits[valid], expected[valid])
    valid[2] = False
    empty = model.prompt(ids, valid)
    padded = model.logits(model.features(empty.x, empty.positions, mask=masks.padding(valid)))
    assert_close(padded[:2], logits[:2])
    assert padded.isfinite().all()

    config = find_reader(hf_config["model_type"]).read_config(hf_config)
    converter = find_writer(config)
    exported_config = converter.write_config(config, (), False)
    kind = getattr(transformers, exported_config["architectures"][0])
    assert kind is type(reference)
    exported = kind(reference.config_class.from_dict(exported_config)).to(dtype).eval()
    exported.load_state_dict(
        converter.from_vitkit(model.state_dict(), config), strict=not exported_config["tie_word_embeddings"]
    )
    compare(exported(ids).logits, reference(ids).logits)


def save_with_tokenizer(reference: Any, folder: Path) -> None:
    reference.float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(format_raw_bytes(()))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Llama, tied"])
@torch.no_grad()
def test_folder_of_transformers_becomes_a_model_folder_and_back(
    name: str, tmp_path: Path, randomise: Callable[[nn.Module], Any]
) -> None:
    reference = randomise(REFERENCES[name]())
    save_with_tokenizer(reference, tmp_path / "theirs")
    import_model(tmp_path / "theirs", tmp_path / "ours")
    bundle, ids = open_model(tmp_path / "ours"), torch.randint(257, (2, 9))
    assert bundle.tokenizer is not None and bundle.tokenizer.context == 40
    assert bundle.tokenizer(["a cat"]).tolist() == [[*b"a cat", 256]]
    assert_close(bundle.model(ids), reference(ids).logits, rtol=0, atol=1e-5)
    result = export_to(tmp_path / "ours", tmp_path / "back", "hf")
    assert result.difference is not None and result.difference < 1e-5
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert_close(exported(ids).logits, reference(ids).logits, rtol=0, atol=1e-5)
    assert exported.config.eos_token_id == 256
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert tokenizer(["a cat"]).input_ids == [[*b"a cat", 256]]
    file, config = tmp_path / "theirs" / "model.safetensors", open_model(tmp_path / "ours").config
    import_model(file, tmp_path / "of the file")  # by the config beside it
    assert open_model(tmp_path / "of the file").config == config


def test_masks_and_second_heads_of_old_files_are_dropped() -> None:
    gpt2, llama = make_gpt2(), make_llama(tie_word_embeddings=True)
    state = {name.removeprefix("transformer."): tensor for name, tensor in gpt2.state_dict().items()}
    state |= {"h.0.attn.bias": torch.ones(1, 1, 40, 40), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    convert(state, {**get_hf_config(gpt2), "architectures": ["GPT2Model"]})
    state = {**llama.state_dict(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    convert(state, get_hf_config(llama))
    with pytest.raises(ValueError, match="lm_head.weight must equal the embeddings with tie_word_embeddings"):
        convert({**state, "lm_head.weight": torch.ones(257, 48)}, get_hf_config(llama))


def test_rates_of_dropout_are_noted() -> None:
    hf_config = get_hf_config(make_gpt2(attn_pdrop=0.0, resid_pdrop=0.2))
    (note,) = find_reader("gpt2").find_left_out({}, hf_config).notes
    assert note == "left out, as they are for training: resid_pdrop=0.2, embd_pdrop=0.1"


def test_layout_of_a_file_is_detected() -> None:
    for layout, model in (("GPT-2 of transformers", make_gpt2()), ("Llama of transformers", make_llama())):
        state = {**model.state_dict()}
        assert detect_layout(WeightFile(state)) == (layout, WeightFile(state))


@pytest.mark.parametrize(
    ("hf_config", "message"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "one of GPT2LMHeadModel"),
        ({"model_type": "gpt2", "n_embd": "a"}, "n_embd must be a whole number above 0"),
        (
            {"model_type": "gpt2", "n_head": 5, "scale_attn_weights": False, "add_cross_attention": True},
            "n_head must divide n_embd, got 5 and 768; scale_attn_weights must be true; add_cross_attention",
        ),
        ({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}, "unscaled .*, got 'linear'"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}}, "unscaled .*, got 'llama3'"),
        (
            {"model_type": "llama", "hidden_act": "gelu", "num_key_value_heads": 5},
            "hidden_act must be silu, got hidden_act=gelu; num_key_value_heads must divide num_attention_heads",
        ),
        ({"model_type": "mistral"}, "model_type must be one of vit, .*gpt2, got model_type='mistral'"),
    ],
)
def test_setting_that_a_text_decoder_lacks_is_rejected(hf_config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_reader(hf_config["model_type"]).read_config(hf_config)


def change_config(name: str, encoder: Mapping[str, Any] | None = None, **args: Any) -> dict[str, Any]:
    hf_config = get_hf_config(REFERENCES[name]())
    config = copy.deepcopy(find_reader(hf_config["model_type"]).read_config(hf_config))
    config["init_args"] |= args
    config["init_args"]["encoder"]["init_args"] |= encoder or {}
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (change_config("GPT-2", table="vitkit.nn.Sinusoidal", scale=2.0), "scale must be 1.*table must be Learned"),
        (change_config("GPT-2", {"causal": False}), "encoder must be causal"),
        (change_config("GPT-2", {"position": "vitkit.nn.Rotary"}), "position must be left out"),
        (change_config("Llama", {"residual": "vitkit.nn.PostNorm"}), "residual must be vitkit.nn.PreNorm"),
        (change_config("Llama", {"position": "vitkit.nn.ALiBi"}), "position must be vitkit.nn.Rotary"),
        (change_config("Llama", table="vitkit.nn.Learned", logit_scale=0.5), "logit_scale must be 1.*NoPositions"),
    ],
)
def test_decoder_without_a_class_in_transformers_is_rejected(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_writer(config).write_config(config, (), False)
    tokenizer = Tokenizer(40, vocabulary="bytes")
    assert find_export_targets(config, None, tokenizer).layouts == ()


def test_defaults_are_those_of_transformers() -> None:
    for values, kind in ((gpt2_config.DEFAULTS, "GPT2Config"), (llama_config.DEFAULTS, "LlamaConfig")):
        defaults = getattr(transformers, kind)().to_dict()
        assert {name: defaults[name] for name in values} == values
