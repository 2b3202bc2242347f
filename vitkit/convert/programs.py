"""A trained model as ONNX or torch.export programs, compared with the model on inputs before they are kept.

A classifier is one program, from images to logits; an MAE one, from images to the features of its encoder; a CLIP two,
from images and from texts to embeddings of length 1.

B batch, C channels, h w the model's image size, N patches, T tokens, D width, A position axes.
"""

import copy
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from vitkit.bundle.bundle import Bundle, get_preprocess, get_tokenizer
from vitkit.bundle.folder import FILES, OPTIONAL_FILES, format_classes, format_json, format_preprocess
from vitkit.bundle.image_bundle import Embedding
from vitkit.convert.differences import draw_ids
from vitkit.convert.open import open_image_model, open_model
from vitkit.data.preprocess import Preprocess, read_image
from vitkit.data.sources.source import list_images
from vitkit.data.tokenizer import read_tokenizer_files
from vitkit.models import CLIP, MAE, ViT
from vitkit.models.parts import get_image_tower
from vitkit.nn import Encoder, PatchEmbed, list_cells
from vitkit.support.extras import require_package
from vitkit.support.files import create_folder, require_new

Module = TypeVar("Module", bound=nn.Module)
Tower = TypeVar("Tower", ViT, MAE)
TOLERANCE = 1e-4  # of any output; float32 in another order of operations differs by about 1e-6
BATCHES = (1, 7)  # 1, which exporters tend to take for a constant, and a size that the example does not have
EXAMPLE = 2
OPSETS = range(18, 24)  # for which torch.onnx has operators: earlier versions are converted, or left as they are
INLINE = 2**30  # bytes: ONNX files end at 2 GB, larger models keep their weights in model.onnx.data


class ProgramFile(NamedTuple):
    """An exported file, and the largest difference of its outputs from the model's by batch size."""

    file: str
    differences: Mapping[int, float]


class Graph(NamedTuple):
    """A function of a model that becomes a program.

    Args:
        name: of its files, without the suffix.
        module: what is traced, on the CPU and for one image size.
        reference: the same function of the model itself.
        samples: inputs to compare on, one for each of BATCHES.
        length: the largest size of axis 1 of the input, if it may vary as axis 0 does.
    """

    name: str
    module: nn.Module
    reference: Callable[[Tensor], Tensor]
    input: str
    output: str
    example: Tensor
    samples: tuple[Tensor, ...]
    length: int | None = None

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any]]:
        """The axes of the input that may have any size."""
        length = {} if self.length is None else {1: torch.export.Dim("length", max=self.length)}
        return ({0: torch.export.Dim("batch"), **length},)


class FixedTable(nn.Module):
    """A table of positions for the one exported image size: runtimes differ in how they resample."""

    def __init__(self, rows: Float[Tensor, "1 N D"]) -> None:
        super().__init__()
        self.rows = nn.Buffer(rows)

    def forward(self, positions: Real[Tensor, "b N A"], grid: tuple[int, ...]) -> Float[Tensor, "1 N D"]:
        return self.rows


class FeatureEncoder(nn.Module):
    """The tokens of an MAE's encoder, prefix tokens first, with no patch hidden."""

    def __init__(self, embed: PatchEmbed, encoder: Encoder) -> None:
        super().__init__()
        self.embed, self.encoder = embed, encoder

    def forward(self, images: Float[Tensor, "B C h w"]) -> Float[Tensor, "B T D"]:
        return self.encoder(*self.embed(images))


def export(
    model: str | Path,
    out: str | Path,
    formats: Sequence[str] = ("onnx",),
    images: Sequence[str] = (),
    *,
    opset: int | None = None,
    overwrite: bool = False,
) -> list[ProgramFile]:
    """Write programs and the files that describe their inputs and outputs to a new folder, or nothing if a check fails.

    A ViT becomes model.onnx or model.pt2 with preprocess.json and classes.json; an MAE the same without classes; a CLIP
    image.onnx and text.onnx, with its tokenizer, and the scale and the bias of its logits in logits.json.

    Args:
        formats: "onnx", "torch" or both.
        images: picture files and folders to check with (default: photographs from scikit-image or scikit-learn).
        opset: version of ONNX's operators, one of OPSETS (default: that of torch.onnx).
        overwrite: replace an earlier export in a folder that exists; other files in it stay.
    """
    if unknown := [name for name in formats if name not in WRITERS] or not formats:
        raise ValueError(f"format must be of {', '.join(WRITERS)}, got {unknown or 'none'}")
    if opset is not None and ("onnx" not in formats or opset not in OPSETS):
        rule = f"opset must be from {OPSETS[0]} to {OPSETS[-1]}, for the format onnx"
        raise ValueError(f"{rule}, got opset={opset} for {', '.join(formats)}")
    for name in formats:
        for package in WRITERS[name].packages:
            require_package(package, f"export to {name}", extra="export")
    require_new(Path(out), overwrite, folder=True)
    bundle = open_model(model)
    preprocess = get_preprocess(bundle)
    if dtypes := {parameter.dtype for parameter in bundle.model.parameters()} - {torch.float32}:
        raise ValueError(f"model must hold float32, got {', '.join(map(str, dtypes))}; save it as model.float()")
    with create_folder(Path(out), overwrite, list_earlier_files(Path(out))) as temporary:
        graphs = make_graphs(bundle, prepare_images(images, preprocess, max(BATCHES)))
        writers = {**WRITERS}
        if opset is not None:
            writers["onnx"] = WRITERS["onnx"]._replace(write=partial(write_onnx, opset=opset))
        results = [write_program(writers[name], graph, temporary) for name in formats for graph in graphs]
        for name, content in format_files(bundle).items():
            (temporary / name).write_bytes(content)
    return results


def list_earlier_files(folder: Path) -> list[str]:
    """Return the names of the files of an earlier export, of programs alone beside a model that vitkit opens."""
    names = [f"{name}{writer.suffix}" for name in ("model", "image", "text") for writer in WRITERS.values()]
    programs = [*names, *(f"{name}.data" for name in names)]
    exported = any((folder / name).is_file() for name in names) and not (folder / FILES[0]).is_file()
    return [*programs, "classes.json", "logits.json", *OPTIONAL_FILES] if exported else programs


def make_graphs(bundle: Bundle, images: Float[Tensor, "B C h w"]) -> list[Graph]:
    """Return the functions of a model. Raises: ValueError for a model of another class."""
    size, samples = get_preprocess(bundle).size, tuple(images[:batch] for batch in BATCHES)
    pictures = {"input": "images", "example": images[:EXAMPLE], "samples": samples}
    match bundle.model:
        case CLIP() as clip:
            image, text = (
                nn.Sequential(tower, Embedding(nn.Identity()))
                for tower in (fix_size(clip.image, size), copy_frozen(clip.text))
            )
            output = "embeddings"
            return [
                Graph("image", image, clip.encode_image, output=output, **pictures),
                Graph("text", text, clip.encode_text, output=output, **prepare_texts(clip)),
            ]
        case MAE() as mae:
            fixed = fix_size(mae, size)
            return [
                Graph("model", FeatureEncoder(fixed.embed, fixed.encoder), mae.features, output="features", **pictures)
            ]
    if not isinstance(vit := get_image_tower(open_image_model(bundle).model), ViT):
        raise ValueError(f"model must be a ViT, an MAE or a CLIP, got {type(bundle.model).__name__} in {bundle.source}")
    return [Graph("model", fix_size(vit, size), vit, output="logits", **pictures)]


def prepare_texts(clip: CLIP) -> dict[str, Any]:
    """Return the arguments of a text tower's Graph: texts of the context, and shorter ones unless all are padded."""
    context, batch = clip.text.embed.context, max(BATCHES)
    ids = draw_ids(clip, 1 + batch)
    if clip.text.whole:
        return {"input": "ids", "example": ids[:EXAMPLE], "samples": tuple(ids[:count] for count in BATCHES)}
    samples = tuple(ids[:1] if count == 1 else ids[1 : 1 + count, : context // 2 + 1] for count in BATCHES)
    return {"input": "ids", "example": ids[:EXAMPLE], "samples": samples, "length": context}


def format_files(bundle: Bundle) -> dict[str, bytes]:
    """Return the files that describe the inputs and outputs of the programs, by name."""
    texts = format_preprocess(get_preprocess(bundle))
    if not isinstance(clip := bundle.model, CLIP):
        texts |= {} if isinstance(bundle.model, MAE) else format_classes(bundle.class_names, bundle.multilabel)
        return {name: text.encode() for name, text in texts.items()}
    bias = 0.0 if clip.bias is None else clip.bias.item()
    texts["logits.json"] = format_json({"scale": clip.log_scale.exp().item(), "bias": bias})
    return {name: text.encode() for name, text in texts.items()} | {**read_tokenizer_files(get_tokenizer(bundle))}


def fix_size(model: Tower, size: tuple[int, int]) -> Tower:
    """Return a copy for images of this size alone, on the CPU."""
    fixed = copy_frozen(model)
    grid = fixed.embed.grid(*size)
    with torch.no_grad():
        fixed.embed.table = FixedTable(fixed.embed.table(list_cells(grid, torch.device("cpu")), grid).clone())
    return fixed


def copy_frozen(model: Module) -> Module:
    """Return a copy on the CPU, in eval mode and without gradients."""
    return copy.deepcopy(model).cpu().eval().requires_grad_(False)


def write_program(writer: "ProgramWriter", graph: Graph, folder: Path) -> ProgramFile:
    """Write one program and compare its outputs with the model's.

    Raises: ValueError if they differ by more than TOLERANCE.
    """
    path = folder / f"{graph.name}{writer.suffix}"
    try:
        with warnings.catch_warnings(action="ignore"):  # exporters warn about themselves
            writer.write(graph, path)
            run = writer.open(path)
    except Exception as error:  # of any class, and pages long
        raise ValueError(f"{path.name} could not be made: {textwrap.shorten(str(error), 400)}") from error
    with torch.inference_mode():
        outputs = [(run(inputs), graph.reference(inputs)) for inputs in graph.samples]
    differences = {len(ours): (theirs - ours).abs().max().item() for theirs, ours in outputs}
    if not max(differences.values()) <= TOLERANCE:
        text = ", ".join(f"{value:.2g} at batch {batch}" for batch, value in differences.items())
        raise ValueError(f"{path.name} must give the model's outputs within {TOLERANCE}, got differences {text}")
    return ProgramFile(path.name, differences)


def write_onnx(graph: Graph, path: Path, opset: int | None = None) -> None:
    program = torch.onnx.export(
        graph.module,
        (graph.example,),
        input_names=[graph.input],
        output_names=[graph.output],
        dynamic_shapes=graph.dynamic_shapes,
        opset_version=opset,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise ValueError("the exporter gave no program")
    if opset not in (None, actual := program.model.opset_imports[""]):
        raise ValueError(f"the exporter converts its operators to opset {actual}, not to {opset}")
    for node in program.model.graph.all_nodes():  # the exporter's notes: paths of this machine's source files
        node.metadata_props.clear()
    size = sum(tensor.nbytes for tensor in graph.module.state_dict().values())
    program.save(path, external_data=size > INLINE)


def open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(np.asarray(session.run(None, {name: inputs.numpy()})[0]))


def write_torch(graph: Graph, path: Path) -> None:
    program = torch.export.export(graph.module, (graph.example,), dynamic_shapes=graph.dynamic_shapes)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine's source files
    torch.export.save(program, path)


def open_torch(path: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(path).module()


class ProgramWriter(NamedTuple):
    """A format of programs: the suffix of its files, the packages that it needs, functions that write and open it."""

    suffix: str
    packages: tuple[str, ...]
    write: Callable[[Graph, Path], None]
    open: Callable[[Path], Callable[[Tensor], Tensor]]


WRITERS = {
    "onnx": ProgramWriter(".onnx", ("onnx", "onnxscript", "onnxruntime"), write_onnx, open_onnx),
    "torch": ProgramWriter(".pt2", (), write_torch, open_torch),
}


def prepare_images(images: Sequence[str], preprocess: Preprocess, count: int) -> Float[Tensor, "B C h w"]:
    """Return `count` different inputs: the pictures, repeated with rotations if there are fewer."""
    paths = [path for name in images for path in (list_images(Path(name)) if Path(name).is_dir() else [name])]
    if images and not paths:
        raise ValueError(f"images must hold pictures, got none in {', '.join(images)}")
    samples = [read_image(path) for path in (paths or list_photographs())[:count]]
    if not samples:
        raise ValueError("images must be given to check the export with, got none, nor scikit-image or scikit-learn")
    rotations = [image.rotate(20 * turn) for turn in range(count) for image in samples]
    return torch.stack([preprocess(image) for image in rotations[:count]])


def list_photographs() -> list[Path]:
    """List the photographs inside the packages scikit-image and scikit-learn, without those they would download."""
    paths: list[Path] = []
    for package, folder in (("skimage", "data"), ("sklearn", "datasets/images")):
        spec = find_spec(package)
        if spec and spec.origin:
            photographs = Path(spec.origin).parent / folder
            paths += sorted(path for path in photographs.iterdir() if path.suffix in (".jpg", ".png"))
    return paths
