"""A trained model as an ONNX or torch.export program, compared with the model on images before it is kept.

B batch, C channels, h w the model's image size, K classes, N patches, D width, A position axes.
"""

import copy
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from vitkit.bundle.bundle import get_preprocess
from vitkit.bundle.folder import format_classes, format_preprocess
from vitkit.convert.open import open_image_model
from vitkit.data.preprocess import Preprocess, read_image
from vitkit.data.sources.source import list_images
from vitkit.models import ViT
from vitkit.models.parts import get_image_tower
from vitkit.nn import list_cells
from vitkit.support.extras import require_package
from vitkit.support.files import create_folder, require_new

TOLERANCE = 1e-4  # of any output; float32 in another order of operations differs by about 1e-6
BATCHES = (1, 7)  # 1, which exporters tend to take for a constant, and a size that the example does not have
EXAMPLE = 2
INLINE = 2**30  # bytes: ONNX files end at 2 GB, larger models keep their weights in model.onnx.data


class ProgramFile(NamedTuple):
    """An exported file, and the largest difference of its outputs from the model's by batch size."""

    file: str
    differences: Mapping[int, float]


class FixedTable(nn.Module):
    """A table of positions for the one exported image size: runtimes differ in how they resample."""

    def __init__(self, rows: Float[Tensor, "1 N D"]) -> None:
        super().__init__()
        self.rows = nn.Buffer(rows)

    def forward(self, positions: Real[Tensor, "b N A"], grid: tuple[int, ...]) -> Float[Tensor, "1 N D"]:
        return self.rows


def export(
    model: str | Path,
    out: str | Path,
    formats: Sequence[str] = ("onnx",),
    images: Sequence[str] = (),
    *,
    overwrite: bool = False,
) -> list[ProgramFile]:
    """Write model.onnx or model.pt2, preprocess.json and classes.json to a new folder, or nothing if a check fails.

    Args:
        formats: "onnx", "torch" or both.
        images: picture files and folders to check with (default: photographs from scikit-image or scikit-learn).
        overwrite: replace files of the same names in a folder that exists.
    """
    if unknown := [name for name in formats if name not in WRITERS] or not formats:
        raise ValueError(f"format must be of {', '.join(WRITERS)}, got {unknown or 'none'}")
    for name in formats:
        for package in WRITERS[name].packages:
            require_package(package, f"export to {name}", extra="export")
    require_new(Path(out), overwrite, folder=True)
    bundle = open_image_model(model)
    preprocess = get_preprocess(bundle)
    if not isinstance(network := get_image_tower(bundle.model), ViT):
        raise ValueError(
            f"model must be a ViT, got {type(network).__name__} in {model}; --to openclip, hf or mae takes others"
        )
    if dtypes := {parameter.dtype for parameter in network.parameters()} - {torch.float32}:
        raise ValueError(f"model must hold float32, got {', '.join(map(str, dtypes))}; save it as model.float()")
    with create_folder(Path(out), overwrite) as temporary:
        samples = prepare_images(images, preprocess, max(BATCHES))
        fixed = fix_size(network, preprocess.size)
        results = [write_program(WRITERS[name], fixed, network, samples, temporary) for name in formats]
        texts = format_preprocess(preprocess) | format_classes(bundle.class_names, bundle.multilabel)
        for name, text in texts.items():
            (temporary / name).write_text(text, "utf-8")
    return results


def fix_size(model: ViT, size: tuple[int, int]) -> ViT:
    """Return a copy for images of this size alone, on the CPU."""
    fixed = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    grid = fixed.embed.grid(*size)
    with torch.no_grad():
        fixed.embed.table = FixedTable(fixed.embed.table(list_cells(grid, torch.device("cpu")), grid).clone())
    return fixed


def write_program(
    writer: "ProgramWriter", fixed: ViT, model: ViT, images: Float[Tensor, "B C h w"], folder: Path
) -> ProgramFile:
    """Write one program and compare its outputs with the model's.

    Raises: ValueError if they differ by more than TOLERANCE.
    """
    path = folder / writer.file
    try:
        with warnings.catch_warnings(action="ignore"):  # exporters warn about themselves
            writer.write(fixed, images[:EXAMPLE], path)
            run = writer.open(path)
    except Exception as error:  # of any class, and pages long
        raise ValueError(f"{writer.file} could not be made: {textwrap.shorten(str(error), 400)}") from error
    differences: dict[int, float] = {}
    for batch in BATCHES:
        with torch.inference_mode():
            expected = model(images[:batch])
            differences[batch] = (run(images[:batch]) - expected).abs().max().item()
    if not max(differences.values()) <= TOLERANCE:
        text = ", ".join(f"{value:.2g} at batch {batch}" for batch, value in differences.items())
        raise ValueError(f"{writer.file} must give the model's outputs within {TOLERANCE}, got differences {text}")
    return ProgramFile(writer.file, differences)


def write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    program = torch.onnx.export(
        model,
        (example,),
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise ValueError("the exporter gave no program")
    for node in program.model.graph.all_nodes():  # the exporter's notes: paths of this machine's source files
        node.metadata_props.clear()
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    program.save(path, external_data=size > INLINE)


def open_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(np.asarray(session.run(["logits"], {"images": images.numpy()})[0]))


def write_torch(model: nn.Module, example: Tensor, path: Path) -> None:
    batch = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (example,), dynamic_shapes=batch)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine's source files
    torch.export.save(program, path)


def open_torch(path: Path) -> Callable[[Tensor], Tensor]:
    return torch.export.load(path).module()


class ProgramWriter(NamedTuple):
    """A format of programs: its file, the packages that it needs, and functions that write and open it."""

    file: str
    packages: tuple[str, ...]
    write: Callable[[nn.Module, Tensor, Path], None]
    open: Callable[[Path], Callable[[Tensor], Tensor]]


WRITERS = {
    "onnx": ProgramWriter("model.onnx", ("onnx", "onnxscript", "onnxruntime"), write_onnx, open_onnx),
    "torch": ProgramWriter("model.pt2", (), write_torch, open_torch),
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
