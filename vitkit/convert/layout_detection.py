"""Files of tensors alone: the layout is detected by tensor names, and overrides or conventions settle the rest."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from vitkit.bundle.folder import suggest_folder
from vitkit.bundle.weights import get_shapes
from vitkit.convert import foreign_folders, jax_weights, mae_weights
from vitkit.convert.overrides import (
    Conversion,
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
from vitkit.support.errors import format_count

# A file has a layout if it has all of its names. One name is not enough: DINOv2's files have a mask_token too.
# The first name stands once in a model: what wrappers put in front of names is what stands in front of it.
LAYOUTS = {
    "MAE": mae_weights.FULL,
    "timm": ("patch_embed.proj.weight", "pos_embed", "blocks.0.norm1.weight", "blocks.0.attn.qkv.weight"),
    "timm without pos_embed": ("patch_embed.proj.weight", "blocks.0.norm1.weight"),
    "JAX": ("embedding/kernel", "Transformer/posembed_input/pos_embedding", "Transformer/encoder_norm/scale"),
    "open_clip": ("visual.conv1.weight", "visual.positional_embedding", "visual.transformer.resblocks.0.ln_1.weight"),
    "open_clip around timm": ("visual.trunk.patch_embed.proj.weight", "visual.trunk.blocks.0.attn.qkv.weight"),
    "CLIP or SigLIP of transformers": ("embeddings.position_embedding.weight", "embeddings.patch_embedding.weight"),
    "transformers": ("embeddings.position_embeddings", "embeddings.patch_embeddings.projection.weight"),
    "GPT-2 of transformers": ("wte.weight", "h.0.attn.c_attn.weight"),
    "Llama of transformers": ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"),
    "vitkit": ("encoder.blocks.0.attn.f.out.weight",),
}
SEPARATOR = re.compile("[./]")
# What transformers puts before the names of a model inside another, such as vit. in vit.embeddings.cls_token.
HF_BASE = re.compile(
    r"^(vit|deit|dinov2|dinov2_with_registers|vision_model)\.(?=embeddings\.)"
    r"|^transformer\.(?=(wte|h)\.)"
)
# Layouts whose tensors need a config, in the same folder or in that of --like.
LAYOUTS_WITH_CONFIG = (
    *("open_clip", "open_clip around timm", "CLIP or SigLIP of transformers", "transformers"),
    *("GPT-2 of transformers", "Llama of transformers"),
)
# https://github.com/facebookresearch/mae, util/datasets.py: ImageNet's figures, bicubic, 224 of 256 pixels.
MAE_PREPROCESS = Preprocess((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), crop=224 / 256)


def import_file(path: Path, overrides: Overrides) -> Conversion:
    """Import a file of weights. Raises: ValueError that lists the missing options."""
    layout, weights = detect_layout(read_weights(path))
    match layout:
        case "vitkit":
            raise ValueError(
                f"{path} holds weights of vitkit without the description of their model{suggest_folder(path)}"
            )
        case "timm without pos_embed":
            raise ValueError(f"{path} must hold a ViT with {describe_absent_positions(weights.state)}")
        case layout if layout in LAYOUTS_WITH_CONFIG:
            return foreign_folders.import_described_file(path, weights, overrides)
        case "JAX":
            arrays = {name: tensor.numpy() for name, tensor in weights.state.items()}
            if overrides.heads not in (None, heads := jax_weights.count_heads(arrays)):
                raise ValueError(f"heads must be {heads}, as in the kernels of {path}, got heads={overrides.heads}")
            weights = weights._replace(state=jax_weights.to_timm(arrays))
            return import_tensors(str(path), weights, overrides._replace(heads=heads))
    state = rename_aliases(weights.state)
    rules = mae_weights.RULES if mae_weights.is_full(state) else timm_tensors.make_rules(timm_config.has_swiglu(state))
    return import_tensors(str(path), weights._replace(state=state), overrides)._replace(rules=rules)


def detect_layout(weights: WeightFile) -> tuple[str, WeightFile]:
    """Return the layout of a file by its names, and its tensors without the prefix that a wrapper put before names.

    Raises: ValueError for an unknown layout.
    """
    for prefix in list_prefixes(weights.state):
        state = {name.removeprefix(prefix): weights.state[name] for name in weights.state if name.startswith(prefix)}
        names = {HF_BASE.sub("", name) for name in rename_aliases(state)}
        for layout, required in LAYOUTS.items():
            if names.issuperset(required):
                return layout, weights._replace(
                    state=state, notes=(*weights.notes, *note_prefix(weights.state, prefix))
                )
    examples = ", ".join(sorted(weights.state)[:5])
    layouts = ", ".join(layout for layout in LAYOUTS if layout != "vitkit")
    raise ValueError(f"names must be of a known layout ({layouts}), got {len(weights.state)}: {examples}, ...")


def list_prefixes(names: Iterable[str]) -> list[str]:
    """Return "" and what may be a prefix of the names of a model, the shortest first; a DINO's student last."""
    anchors = tuple(required[0] for required in LAYOUTS.values())
    starts = {name[: match.end()] for name in names if name.endswith(anchors) for match in SEPARATOR.finditer(name)}
    return sorted({"", *starts}, key=lambda start: ("student" in start, len(start), start))


def note_prefix(names: Collection[str], prefix: str) -> list[str]:
    """Return notes that a prefix is taken off and that tensors without it are left out."""
    notes = [f"{prefix} is taken off the names of tensors"] if prefix else []
    if others := [name for name in names if not name.startswith(prefix)]:
        notes.append(f"left out: {format_count(len(others), 'tensors')} beside {prefix}*, such as {others[0]}")
    return notes


def describe_absent_positions(names: Iterable[str]) -> str:
    """Return what a model of timm without pos_embed lacks, and what it has instead."""
    kinds = {"rope": "rotary positions", "relative_position": "relative positions"}
    kind = next((kinds[part] for name in names for part in kinds if part in name), "rotary positions or none")
    return (
        f"a table of positions (pos_embed), got one of timm with {kind}; ViT, DeiT, DINOv2, MAE, AugReg, CLIP and "
        "SigLIP are supported"
    )


def import_tensors(source: str, weights: WeightFile, overrides: Overrides) -> Conversion:
    """Import a model in timm's layout, or a masked autoencoder in MAE's."""
    ledger = Ledger()
    full = mae_weights.is_full(weights.state)
    ledger.notes += [*weights.notes, *(() if full else timm_tensors.list_left_out(weights.state))]
    traits = timm_config.read_traits(weights.state)
    reference = read_reference(overrides.like, get_shapes(weights.state)) if overrides.like else None
    check_channels(overrides, weights.state["patch_embed.proj.weight"].shape[1])
    if reference is None:
        refuse_varied_layers(source, weights.state)
    else:
        check_architecture(source, traits, str(overrides.like), reference.traits)
    facts = settle_facts(ledger, weights.state, overrides, reference)
    known = [(reference and reference.preprocess, f"preprocessing as in {overrides.like}")]
    if full or is_mae_encoder(weights.state):
        note = "preprocessing as in MAE's own code: ImageNet's mean and std, bicubic, crop 0.875"
        known.append((MAE_PREPROCESS, note))
    preprocess = settle_preprocess(ledger, overrides, overrides.size or facts.size, *known)
    decoder = settle_decoder(ledger, weights, overrides, reference) if full else None
    ledger.close(source)
    config = mae_weights.read_config(weights.state, facts, decoder[0], norm_pix=decoder[1]) if decoder else None
    config = config or timm_config.read_config(weights.state, facts)
    outputs = count_outputs(config)
    same_head = reference if reference and len(reference.class_names or ()) == outputs else None
    class_names, class_notes = choose_class_names(overrides, outputs, same_head and same_head.class_names)
    state = (mae_weights if decoder else timm_tensors).to_vitkit(weights.state, get_grid(config))
    multilabel = same_head is not None and same_head.multilabel
    return Conversion(config, state, preprocess, class_names, (*ledger.notes, *class_notes), multilabel)


def settle_facts(
    ledger: Ledger, state: Mapping[str, Tensor], overrides: Overrides, reference: Reference | None
) -> Facts:
    """Return the facts that tensors of timm's layout do not determine."""
    dim, _, *patch = state["patch_embed.proj.weight"].shape
    known, usual, square = reference and reference.facts, get_usual_heads(dim), guess_square_size(state, patch)
    heads = ledger.settle(
        "--heads",
        (overrides.heads, ""),
        (known and known.heads, f"{known and known.heads} heads, as in {overrides.like}"),
        (usual, f"{usual} heads, as is usual at width {dim}"),
        otherwise=1,
    )
    count = count_positions(state)
    size = ledger.settle(
        "--size"
        if overrides.size is None
        else f"--size for {count} positions, which are no square, not {overrides.size}",
        (overrides.size and keep_fitting_size(state, overrides.size, patch), ""),
        (known and keep_fitting_size(state, known.size, patch), f"size {known and known.size}, as in {overrides.like}"),
        (square, f"size {square}: the {count} positions are taken for a square"),
        otherwise=(patch[0], patch[1]),
    )
    pool = "token" if mae_weights.is_full(state) else settle_pool(ledger, state, known and known.pool)
    # DINOv2 resamples positions without smoothing, but for its models with registers.
    default = Facts(heads, size, antialias="mask_token" not in state or "reg_token" in state)
    facts = (known or default)._replace(heads=heads, size=size, pool=pool)
    layers = format_layers(facts)
    ledger.notes.append(f"{layers}, as in {overrides.like}" if known else f"assumed, as no tensor shows it: {layers}")
    if "blocks.0.ls1.gamma" in state:
        ledger.notes.append(format_resample_note(facts.antialias))
    return facts


def format_layers(facts: Facts) -> str:
    """Return the activation, the epsilon, and how positions are resampled."""
    act = next(name for name, value in timm_config.ACTS.items() if value == facts.act)
    resample = "with" if facts.antialias else "without"
    return f"activation {act}, epsilon {facts.eps:g}, resampling {resample} antialias"


def refuse_varied_layers(source: str, state: Mapping[str, Tensor]) -> None:
    """Raise ValueError for the parts of CLIP and SigLIP, whose activation and epsilon are not those usual in timm."""
    if names := [name for name in ("norm_pre.weight", "attn_pool.latent") if name in state]:
        raise ValueError(
            f"{source} must be described by --like, as no tensor shows the activation and epsilon of a model with "
            f"{' and '.join(names)}: take timm:vit_base_patch16_clip_224 (gelu, 1e-5), "
            "timm:vit_base_patch16_clip_quickgelu_224 (quick_gelu), timm:vit_base_patch16_siglip_224, or one that fits"
        )


def format_resample_note(antialias: bool) -> str:
    """Return a note on resampling: DINOv2's files may come from its own code or timm's, which differ in it."""
    return (
        f"positions are resampled to other sizes by bicubic {'with' if antialias else 'without'} antialias "
        "(timm: with; DINOv2's own code: without, but for registers); table.resample in config.yaml holds it"
    )


def count_positions(state: Mapping[str, Tensor]) -> int:
    return state["pos_embed"].shape[-2]


def keep_fitting_size(state: Mapping[str, Tensor], size: tuple[int, int], patch: list[int]) -> tuple[int, int] | None:
    """Return the size if the positions are for as many patches, else None."""
    return size if (size[0] // patch[0]) * (size[1] // patch[1]) in list_patch_counts(state) else None


def list_patch_counts(state: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the possible numbers of patches: the positions without those of prefix tokens, or all of them."""
    count = count_positions(state)
    return count - sum(state[name].shape[-2] for name in PREFIX if name in state), count


def guess_square_size(state: Mapping[str, Tensor], patch: list[int]) -> tuple[int, int] | None:
    """Return the size of the image if its patches can form a square, else None."""
    for count in list_patch_counts(state):
        if count > 0 and (side := math.isqrt(count)) ** 2 == count:
            return side * patch[0], side * patch[1]
    return None


def settle_pool(ledger: Ledger, state: Mapping[str, Tensor], reference_pool: str | None) -> str:
    """Return timm's global_pool, by the names of its parameters if it has any."""
    if "fc_norm.weight" in state or "attn_pool.latent" in state:
        return "avg" if "fc_norm.weight" in state else "map"
    if is_mae_encoder(state):
        ledger.notes.append("an encoder of MAE, by its fixed positions: its tokens are averaged")
        return "avg"
    if "cls_token" not in state:
        return ledger.settle(
            "--like", (reference_pool, ""), ("avg", "tokens are averaged: there is no CLS"), otherwise="avg"
        )
    return ledger.settle(
        "--like", (reference_pool, ""), ("token", "CLS is read: no tensor is of another pool"), otherwise="token"
    )


def is_mae_encoder(state: Mapping[str, Tensor]) -> bool:
    """Return whether MAE trained this encoder: it has no head, and CLS has a position of zeros."""
    if "head.weight" in state or "cls_token" not in state or "mask_token" in state:
        return False
    return not state["pos_embed"][..., :1, :].any()


def settle_decoder(
    ledger: Ledger, weights: WeightFile, overrides: Overrides, reference: Reference | None
) -> tuple[int, bool]:
    """Return the decoder's number of heads, and whether it predicts normalised patches."""
    dim, argument = weights.state["decoder_embed.weight"].shape[0], weights.arguments.get("norm_pix_loss")
    heads = ledger.settle(
        "--decoder-heads",
        (overrides.decoder_heads, ""),
        (
            reference and reference.decoder_heads,
            f"{reference and reference.decoder_heads} heads in the decoder, as in {overrides.like}",
        ),
        (None if dim % 16 else 16, "16 heads in the decoder, as in all published models"),
        otherwise=1,
    )
    norm_pix = ledger.settle(
        "--norm-pix or --no-norm-pix",
        (overrides.norm_pix, ""),
        (argument, f"norm_pix {argument}, by the training arguments in the file"),
        (reference and reference.norm_pix, f"norm_pix {reference and reference.norm_pix}, as in {overrides.like}"),
        otherwise=True,
    )
    return heads, bool(norm_pix)
