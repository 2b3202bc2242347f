"""One file of tensors: its layout is read from a set of its names, and what tensors do not say from what is told."""

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitkit.convert import foreign_folders, jax_weights, mae_weights
from vitkit.convert.overrides import (
    Imported,
    Ledger,
    Overrides,
    check_channels,
    choose_class_names,
    count_outputs,
    get_grid,
    get_usual_heads,
    settle_preprocess,
)
from vitkit.convert.reference_model import Reference, check_architecture, read_reference
from vitkit.convert.timm import config as timm_config
from vitkit.convert.timm import tensors as timm_tensors
from vitkit.convert.timm.config import PREFIX, Facts, rename_aliases
from vitkit.convert.weight_files import WeightFile, read_weights
from vitkit.data.preprocess import Preprocess

# Every name of a set must be there. One name would not do: DINOv2's files have a mask_token too.
LAYOUTS = {
    "MAE": mae_weights.FULL,
    "timm": ("patch_embed.proj.weight", "pos_embed", "blocks.0.norm1.weight", "blocks.0.attn.qkv.weight"),
    "JAX": ("embedding/kernel", "Transformer/posembed_input/pos_embedding", "Transformer/encoder_norm/scale"),
    "open_clip": ("visual.conv1.weight", "visual.positional_embedding", "visual.transformer.resblocks.0.ln_1.weight"),
    "open_clip around timm": ("visual.trunk.patch_embed.proj.weight", "visual.trunk.blocks.0.attn.qkv.weight"),
    "CLIP or SigLIP of transformers": ("embeddings.position_embedding.weight", "embeddings.patch_embedding.weight"),
    "transformers": ("embeddings.position_embeddings", "embeddings.patch_embeddings.projection.weight"),
}
DESCRIBED = ("open_clip", "open_clip around timm", "CLIP or SigLIP of transformers", "transformers")  # by a file beside
# https://github.com/facebookresearch/mae, util/datasets.py: ImageNet's figures, bicubic, 224 of 256 pixels.
MAE = Preprocess((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), crop=224 / 256)


def import_file(path: Path, overrides: Overrides) -> Imported:
    """Raises: ValueError that lists all that must be told and is not."""
    held = read_weights(path)
    kind = detect_layout({*rename_aliases(held.state)})
    if kind in DESCRIBED:
        return foreign_folders.import_described_file(path, held, overrides)
    if kind == "JAX":
        arrays = {name: tensor.numpy() for name, tensor in held.state.items()}
        if overrides.heads not in (None, heads := jax_weights.count_heads(arrays)):
            raise ValueError(f"heads must be {heads}, as the kernels in {path} say, got heads={overrides.heads}")
        return import_tensors(
            str(path), held._replace(state=jax_weights.to_timm(arrays)), overrides._replace(heads=heads)
        )
    state = rename_aliases(held.state)
    rules = mae_weights.RULES if mae_weights.is_full(state) else timm_tensors.make_rules(timm_config.has_swiglu(state))
    return import_tensors(str(path), held._replace(state=state), overrides)._replace(rules=rules)


def detect_layout(names: set[str]) -> str:
    """Raises: ValueError where names are of no layout that is read here."""
    ends = {end for name in names for end in (name, name.removeprefix("opt/target/"), strip_model_name(name))}
    for kind, wanted in LAYOUTS.items():
        if ends.issuperset(wanted):
            return kind
    shown = ", ".join(sorted(names)[:5])
    raise ValueError(f"names must be of a layout that is known ({', '.join(LAYOUTS)}), got {len(names)}: {shown}, ...")


def strip_model_name(name: str) -> str:
    """transformers puts the model's kind in front: vit.embeddings.cls_token."""
    _, dot, rest = name.partition("embeddings.")
    return dot + rest


def import_tensors(source: str, held: WeightFile, overrides: Overrides) -> Imported:
    """A model in timm's layout, or a masked autoencoder in MAE's."""
    ledger = Ledger()
    full = mae_weights.is_full(held.state)
    ledger.notes += [*held.notes, *(() if full else timm_tensors.list_left_out(held.state))]
    traits, like = timm_config.read_traits(held.state), read_reference(overrides.like) if overrides.like else None
    check_channels(overrides, held.state["patch_embed.proj.weight"].shape[1])
    if like:
        check_architecture(source, traits, str(overrides.like), like.traits)
    facts = settle_facts(ledger, held.state, overrides, like)
    known = [(like and like.preprocess, f"preprocessing as in {overrides.like}")]
    if full or is_mae_encoder(held.state):
        known.append((MAE, "preprocessing as in MAE's own code: ImageNet's mean and std, bicubic, crop 0.875"))
    preprocess = settle_preprocess(ledger, overrides, facts.size, *known)
    decoder = settle_decoder(ledger, held, overrides, like) if full else None
    ledger.close(source)
    config = mae_weights.read_config(held.state, facts, decoder[0], norm_pix=decoder[1]) if decoder else None
    config = config or timm_config.read_config(held.state, facts)
    outputs = count_outputs(config)
    names = like.class_names if like and like.class_names and len(like.class_names) == outputs else None
    classes, numbered = choose_class_names(overrides, outputs, names)
    state = (mae_weights if decoder else timm_tensors).to_vitkit(held.state, get_grid(config))
    return Imported(config, state, preprocess, classes, (*ledger.notes, *numbered))


def settle_facts(ledger: Ledger, state: Mapping[str, Tensor], overrides: Overrides, like: Reference | None) -> Facts:
    """What tensors of timm's layout do not say."""
    dim, _, *patch = state["patch_embed.proj.weight"].shape
    own, usual, square = like and like.facts, get_usual_heads(dim), guess_square_size(state, patch)
    heads = ledger.settle(
        "--heads",
        (overrides.heads, ""),
        (own and own.heads, f"{own and own.heads} heads, as in {overrides.like}"),
        (usual, f"{usual} heads, as is usual at width {dim}"),
        otherwise=1,
    )
    size = ledger.settle(
        "--size",
        (overrides.size, ""),
        (own and keep_fitting_size(state, own.size, patch), f"size {own and own.size}, as in {overrides.like}"),
        (square, f"size {square}: the {count_positions(state)} positions are taken for a square"),
        otherwise=(patch[0], patch[1]),
    )
    pool = "token" if mae_weights.is_full(state) else settle_pool(ledger, state, own and own.pool)
    # DINOv2 resamples positions without smoothing, but for its models with registers.
    bare = Facts(heads, size, antialias="mask_token" not in state or "reg_token" in state)
    facts = (own or bare)._replace(heads=heads, size=size, pool=pool)
    if "blocks.0.ls1.gamma" in state:
        ledger.notes.append(format_resample_note(facts.antialias))
    return facts


def format_resample_note(antialias: bool) -> str:
    """DINOv2's files may come from either code, and do not say so."""
    return (
        f"positions are resampled to other sizes by bicubic {'with' if antialias else 'without'} antialias "
        "(timm: with; DINOv2's own code: without, but for registers); table.resample in config.yaml holds it"
    )


def count_positions(state: Mapping[str, Tensor]) -> int:
    return state["pos_embed"].shape[-2]


def keep_fitting_size(state: Mapping[str, Tensor], size: tuple[int, int], patch: list[int]) -> tuple[int, int] | None:
    """The size, if there are positions for as many patches."""
    return size if (size[0] // patch[0]) * (size[1] // patch[1]) in list_patch_counts(state) else None


def list_patch_counts(state: Mapping[str, Tensor]) -> tuple[int, int]:
    """How many of the positions may be of patches: those that are not of tokens in front, or all."""
    return count_positions(state) - sum(state[name].shape[-2] for name in PREFIX if name in state), count_positions(
        state
    )


def guess_square_size(state: Mapping[str, Tensor], patch: list[int]) -> tuple[int, int] | None:
    """The size of the image, if its patches can be a square."""
    for count in list_patch_counts(state):
        if count > 0 and (side := math.isqrt(count)) ** 2 == count:
            return side * patch[0], side * patch[1]
    return None


def settle_pool(ledger: Ledger, state: Mapping[str, Tensor], like: str | None) -> str:
    """timm's global_pool, which the names say where it has parameters of its own."""
    if "fc_norm.weight" in state or "attn_pool.latent" in state:
        return "avg" if "fc_norm.weight" in state else "map"
    if is_mae_encoder(state):
        ledger.notes.append("an encoder of MAE, by its fixed positions: its tokens are averaged")
        return "avg"
    if "cls_token" not in state:
        return ledger.settle("--like", (like, ""), ("avg", "tokens are averaged: there is no CLS"), otherwise="avg")
    return ledger.settle("--like", (like, ""), ("token", "CLS is read, as no name says otherwise"), otherwise="token")


def is_mae_encoder(state: Mapping[str, Tensor]) -> bool:
    """An encoder that MAE trained: no head, and CLS stands at a row of zeros."""
    if "head.weight" in state or "cls_token" not in state or "mask_token" in state:
        return False
    return not state["pos_embed"][..., :1, :].any()


def settle_decoder(ledger: Ledger, held: WeightFile, overrides: Overrides, like: Reference | None) -> tuple[int, bool]:
    """The decoder's heads, and whether it speaks of normalised patches."""
    dim, said = held.state["decoder_embed.weight"].shape[0], held.arguments.get("norm_pix_loss")
    heads = ledger.settle(
        "--decoder-heads",
        (overrides.decoder_heads, ""),
        (like and like.decoder_heads, f"{like and like.decoder_heads} heads in the decoder, as in {overrides.like}"),
        (None if dim % 16 else 16, "16 heads in the decoder, as in all published models"),
        otherwise=1,
    )
    norm_pix = ledger.settle(
        "--norm-pix or --no-norm-pix",
        (overrides.norm_pix, ""),
        (said, f"norm_pix {said}, as the arguments of the training say, which the file holds"),
        (like and like.norm_pix, f"norm_pix {like and like.norm_pix}, as in {overrides.like}"),
        otherwise=True,
    )
    return heads, bool(norm_pix)
