"""The rules for layout, imports and names, checked on the source. Each rule is tested on a package that breaks it."""

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load_structure() -> ModuleType:
    """Load tests/structure.py by its path, since tests are no package."""
    spec = spec_from_file_location("structure", Path(__file__).with_name("structure.py"))
    assert spec and spec.loader
    module = sys.modules["structure"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


structure = load_structure()
PACKAGE = structure.Package(ROOT)
Guard = Callable[[object], list[str]]


def get_rule_name(guard: Guard) -> str:
    return guard.__name__.removeprefix("check_")


@pytest.mark.parametrize("guard", structure.GUARDS, ids=get_rule_name)
def test_package_follows_the_rule(guard: Guard) -> None:
    faults = guard(PACKAGE)
    assert not faults, "\n".join(["", *faults])


def write_package(root: Path, sources: dict[str, str]) -> object:
    """Write modules, given by their path below `vitkit`, and read them as a package."""
    packages = {str(folder / "__init__.py"): "" for name in sources for folder in Path(name).parents if name[0] != "."}
    for name, source in {"__init__.py": "", **packages, **sources}.items():
        path = root / "vitkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    return structure.Package(root)


MODELS = {
    "models/vit.py": "from torch import nn\nclass ViT(nn.Module): ...\nclass Answer(NamedTuple): ...\n",
    "models/__init__.py": "from vitkit.models.vit import ViT\n",
}
FAMILY = "models, vit = None, None\nfrom vitkit.models import ViT\n"
LAZY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vitkit.inference.prediction import predict\n"
PREDICTION = {"__init__.py": LAZY, "inference/prediction.py": "def predict(): ..."}
# guard, modules, the faults that it reports
FAULTS = [
    # imports
    (
        "cycles",
        {"data/a.py": "import vitkit.data.b", "data/b.py": "from vitkit.data.a import x"},
        ["cycle of 2 modules: vitkit.data.a:1 -> vitkit.data.b; vitkit.data.b:1 -> vitkit.data.a"],
    ),
    (
        "cycles",
        {
            "data/a.py": "from vitkit.data import b",
            "data/b.py": "def f():\n    from vitkit.data.c import x",
            "data/c.py": "if TYPE_CHECKING:\n    import vitkit.data.a",
        },
        [
            "cycle of 3 modules: vitkit.data.a:1 -> vitkit.data.b; vitkit.data.b:2 -> vitkit.data.c; "
            "vitkit.data.c:2 -> vitkit.data.a"
        ],
    ),
    (
        "cycles",
        {"data/a.py": "import_module(TABLE['b'])\nTABLE = {'b': 'vitkit.data.b'}", "data/b.py": "import vitkit.data.a"},
        ["cycle of 2 modules: vitkit.data.a:2 -> vitkit.data.b; vitkit.data.b:1 -> vitkit.data.a"],
    ),
    (
        "places",
        {"foreign/a.py": "", "utils.py": ""},
        ["vitkit.foreign.a: foreign", "vitkit.foreign: foreign", "vitkit.utils: utils"],
    ),
    (
        "layers",
        {"nn/a.py": "def f():\n    from vitkit.models.b import x", "models/b.py": ""},
        ["vitkit.nn.a:2 -> vitkit.models.b"],
    ),
    ("layers", {"tasks/a.py": "import vitkit.retrieval.b", "retrieval/b.py": ""}, ["tasks.a:1 -> vitkit.retrieval.b"]),
    ("layers", {"inference/a.py": "from vitkit.evaluation.b import x", "evaluation/b.py": ""}, ["inference.a:1"]),
    ("layers", {"commands/a.py": "from vitkit import cli", "cli.py": ""}, ["vitkit.commands.a:1 -> vitkit.cli"]),
    (
        "layers",
        {"nn/a.py": "import vitkit\nvitkit.commands.options.parse()", "commands/options.py": "def parse(): ..."},
        ["vitkit.nn.a:2 -> vitkit.commands.options"],
    ),
    (
        "layers",
        {"nn/a.py": "import vitkit as v\ndef f(x=v.commands.options): ...", "commands/options.py": ""},
        ["vitkit.nn.a:2 -> vitkit.commands.options"],
    ),
    (
        "cycles",
        {"data/a.py": "from vitkit import data\ndata.b.f()", "data/b.py": "import vitkit\nvitkit.data.a.f()"},
        ["cycle of 2 modules: vitkit.data.a:2 -> vitkit.data.b; vitkit.data.b:2 -> vitkit.data.a"],
    ),
    (
        "cycles",
        {
            "data/a.py": "from importlib import import_module as load\nload('vitkit.data.b')",
            "data/b.py": "import vitkit.data.a",
        },
        ["cycle of 2 modules: vitkit.data.a:2 -> vitkit.data.b; vitkit.data.b:1 -> vitkit.data.a"],
    ),
    (
        "dynamic_imports",
        {
            "nn/a.py": "import importlib\nimportlib.import_module(f'vitkit.{name}')\n__import__('vitkit.commands')",
            "nn/b.py": "from importlib import import_module as load\nload(name)\nload('.a', 'vitkit.nn')\nload(name=x)",
        },
        ["nn.a:2: importlib", "nn.a:3: __import__", "nn.b:2: load(name)", "nn.b:3: load", "nn.b:4: load(name=x)"],
    ),
    ("absolute", {"nn/a.py": "from .b import x\nfrom .. import models"}, ["a:1: from .b import x", "a:2: from .. imp"]),
    ("root", {**PREDICTION, "commands/a.py": "from vitkit import predict"}, ["vitkit.commands.a:1: predict of vitkit"]),
    ("root", {**PREDICTION, "commands/a.py": "import vitkit\nvitkit.predict()"}, ["vitkit.commands.a:2: predict"]),
    ("trunk", {"nn/a.py": "import math, torch.nn\nimport numpy as np"}, ["vitkit.nn.a:2 -> numpy"]),
    ("lightning", {"models/a.py": "from lightning.pytorch import Trainer"}, ["models.a:1 -> lightning.pytorch"]),
    ("lightning", {"retrieval/a.py": "def f():\n    import lightning_fabric"}, ["retrieval.a:2 -> lightning_fabric"]),
    # names
    (
        "names",
        {
            "data/a.py": "def read(): ...",
            "data/b.py": "def read(): ...",
            "fit/c.py": "from vitkit.data.a import read\nfrom vitkit.data import b\nb.read()",
        },
        ["read: vitkit.data.a, vitkit.data.b"],
    ),
    (
        "names",
        {
            "data/a.py": "class Rows: ...",
            "data/__init__.py": "from vitkit.data.a import Rows",
            "fit/b.py": "class Rows: ...",
            "fit/c.py": "from vitkit.data import Rows as Table\nimport vitkit.fit.b\nvitkit.fit.b.Rows()",
        },
        ["Rows: vitkit.data.a, vitkit.fit.b"],
    ),
    (
        "names",
        {**PREDICTION, "commands/a.py": "def predict(): ..."},
        ["predict: vitkit.commands.a, vitkit.inference.prediction"],
    ),
    (
        "names",  # the protocol of convert does not hold for data
        {
            "convert/a.py": "def read_config(): ...",
            "data/b.py": "def read_config(): ...",
            "fit/c.py": "from vitkit.convert.a import read_config\nfrom vitkit.data.b import read_config as read",
        },
        ["read_config: vitkit.convert.a, vitkit.data.b"],
    ),
    (
        "lazy_names",
        {"__init__.pyi": "from vitkit.inference.generation import generation", "generation.py": ""},
        ["generation: public name"],
    ),
    (
        "lazy_names",
        {"__init__.pyi": "from .inference.prediction import predict as inference", "inference/prediction.py": ""},
        ["inference: public name"],
    ),
    (
        "lazy_names",
        {"__init__.pyi": "from .inference import prediction as inference", "inference/prediction.py": ""},
        ["inference: public name"],
    ),
    ("file_names", {"data/hub.py": "", "convert/hub.py": ""}, ["hub.py: convert, data"]),
    ("file_names", {"data/open.py": "", "convert/open.py": ""}, ["open.py: convert, data"]),
    ("file_names", {"convert/timm/rules.py": "", "convert/rules.py": ""}, ["rules.py: convert, convert/timm"]),
    ("file_names", {"commands/page.py": "", "pages/page.py": ""}, ["page.py: commands, pages"]),
    ("file_names", {"data/hub.py": "", "data/hub/a.py": ""}, ["vitkit/data/hub.py: a file and a folder"]),
    (
        "participles",
        {"commands/attended.py": "", "retrieval/told/a.py": "", "data/told.py": ""},
        ["attended", "data/told.py", "retrieval/told/__init__.py"],
    ),
    ("participles", {"fit/averaging.py": "", "fit/seen.py": "", "bench/timing.py": ""}, ["averaging", "seen"]),
    (
        "participles",
        {"fit/heads_told.py": "", "fit/maps_attended.py": "", "data/seen_pictures.py": "", "data/held_pairs.py": ""},
        ["held_pairs", "seen_pictures", "heads_told", "maps_attended"],
    ),
    # families
    ("families", {"models/a.py": "if hasattr(model, 'decoder'): ..."}, ["models.a:1: hasattr"]),
    (
        "families",
        {
            "fit/a.py": "from functools import singledispatch as by_class\n@by_class\ndef draw(model): ...",
            "fit/b.py": "import functools\nclass A:\n    @functools.singledispatchmethod\n    def draw(self, x): ...",
        },
        ["fit.a:2: functools.singledispatch", "fit.b:3: functools.singledispatchmethod"],
    ),
    ("families", {**MODELS, "fit/a.py": FAMILY + "isinstance(model, (str, ViT))"}, ["vitkit.fit.a:3: isinstance"]),
    ("families", {**MODELS, "fit/a.py": FAMILY + "match x:\n    case ViT(pool=y): ..."}, ["fit.a:4: ViT(pool=y)"]),
    ("families", {**MODELS, "fit/a.py": FAMILY + "type(model) is ViT"}, ["fit.a:3: type(model) is ViT"]),
    ("families", {**MODELS, "fit/a.py": FAMILY + "type(model) in {ViT}"}, ["fit.a:3: type(model) in {ViT}"]),
    ("families", {**MODELS, "fit/a.py": FAMILY + "look_up(path) is ViT"}, ["fit.a:3: look_up(path) is ViT"]),
    ("families", {**MODELS, "fit/a.py": FAMILY + "type(model).__name__ == 'ViT'"}, ["fit.a:3: type(model)"]),
    ("families", {**MODELS, "fit/a.py": "path.endswith('models.ViT')"}, ["fit.a:1: path.endswith"]),
    (
        "families",
        {
            **MODELS,
            "bundle/b.py": FAMILY + "ImageTower = ViT | None",
            "fit/a.py": "def f():\n    from vitkit.bundle.b import ImageTower as T\n    isinstance(model, T)",
        },
        ["vitkit.fit.a:3: isinstance(model, T)"],
    ),
    (
        "families",
        {**MODELS, "fit/a.py": "from vitkit import models\nissubclass(kind, models.vit.ViT)"},
        ["vitkit.fit.a:2: issubclass"],
    ),
    ("families", {"fit/a.py": "import timm\nisinstance(m, timm.models.VisionTransformer)"}, ["fit.a:2: isinstance"]),
    (
        "families",
        {**MODELS, "tasks/a.py": FAMILY + "class Task:\n    def step(self): isinstance(self.model, ViT)"},
        ["vitkit.tasks.a:4: isinstance(self.model, ViT)"],
    ),
    # forbidden code
    ("masks", {"nn/a.py": "scores + -1e9\nfloat('-inf')"}, ["nn.a:1: -1e+09", "nn.a:2: a hand-written infinity"]),
    (
        "masks",
        {
            "nn/a.py": "x < 10**9\nx = -10**9\nx = -1000000000\nx = (-10) ** 9\nx = -1 * 10**9\n"
            "x = -10_000.0\nx = -(2**31)",
            "nn/b.py": "import math\nfrom math import inf\nimport numpy as np\nx = -float('inf')\nx = -math.inf\n"
            "x = -inf\nx = -np.inf\nx = float('-Infinity')",
        },
        [f"nn.a:{line}: -1e+0{power}" for line, power in ((2, 9), (3, 9), (4, 9), (5, 9))]
        + ["nn.a:6: -10000", "nn.a:7: -2.14748e+09"]
        + [f"nn.b:{line}: a hand-written infinity" for line in range(4, 9)],
    ),
    (
        "loading",
        {
            "fit/a.py": "import numpy as np, yaml as y\ny.load_all(f)\nnp.load(f, allow_pickle=True)\ny.full_load(f)",
            "fit/b.py": "from pickle import load, loads as read\nload(f)\nmap(read, rows)\nnp.load(f, allow_pickle=a)",
            "fit/c.py": "from torch import load\nload(f)\npickle.Unpickler(f).load()",
        },
        [
            *("fit.a:2: yaml.load_all", "fit.a:3: numpy.load", "fit.a:4: yaml.full_load"),
            *("fit.b:2: pickle.load", "fit.b:3: pickle.loads", "fit.b:4: np.load"),
            *("fit.c:2: torch.load", "fit.c:3: pickle.Unpickler"),
        ],
    ),
    (
        "loading",
        {"fit/a.py": "torch.load(f)\ntorch.load(f, weights_only=False)\npickle.load(f)"},
        ["fit.a:1: torch.load", "fit.a:2: torch.load", "fit.a:3: pickle.load"],
    ),
    (
        "loading",
        {"fit/a.py": "open_checkpoint(f, weights_only=False)\ntorch.load(f, weights_only=True)"},
        ["fit.a:1: open_checkpoint"],
    ),
    # words
    (
        "words",
        {
            "nn/a.py": 'def merged(x):\n    """What comes out."""\n    found = x\n    return found',
            "nn/b.py": '"""Where things are."""\nclass Told: ...\ndef of_timm(own): ...\ndef _measured(): ...',
        },
        [
            "vitkit.nn.a:1: docstring What",
            "vitkit.nn.a:1: function merged",
            "vitkit.nn.a:3: local found",
            "vitkit.nn.b:1: docstring Where",
            "vitkit.nn.b:2: class Told",
            "vitkit.nn.b:3: function of_timm",
            "vitkit.nn.b:3: local own",
            "vitkit.nn.b:4: function _measured",
        ],
    ),
    (
        "words",
        {f"nn/{name}.py": "def draw(): ..." for name in "abc"},
        ["draw in 3 modules: vitkit.nn.a, vitkit.nn.b, "],
    ),
    # counts
    (
        "counts",
        {
            "fit/a.py": "print(f'{n:,} pictures, {len(files)} files read, {n:,.2f} times')\n"
            "print(f'{few} of {n:,} pictures, {len(files)} in all, {len(files)} class')\n"
            "raise ValueError(f'got {n:,} pictures')"
        },
        ["fit.a:1: {len(files)} files", "fit.a:1: {n:,} pictures"],
    ),
]


@pytest.mark.parametrize(
    ("name", "sources", "expected"), FAULTS, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(FAULTS)]
)
def test_guard_reports_its_fault(name: str, sources: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    faults = sorted(getattr(structure, f"check_{name}")(write_package(tmp_path, sources)))
    assert len(faults) == len(expected), faults
    assert all(part in fault for part, fault in zip(expected, faults, strict=True)), faults


def test_each_guard_has_a_fault_to_report() -> None:
    assert {get_rule_name(guard) for guard in structure.GUARDS} == {name for name, _, _ in FAULTS}


def test_allowed_code_has_no_fault(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            **MODELS,
            "__init__.pyi": "from vitkit.inference.prediction import predict\n",
            "inference/prediction.py": "from vitkit.data import sources\ndef predict(): ...",
            # an intended file name in two folders
            "data/sources/open.py": "def _read(): ...\ndef split(): ...",
            "convert/open.py": "from vitkit.models import ViT\nisinstance(model, ViT)",
            "convert/timm/config.py": "def read_config(): ...",
            "convert/hf/config.py": "def read_config(): ...",
            "convert/importer.py": "from vitkit.convert.timm.config import read_config\n"
            "from vitkit.convert.hf import config\nconfig.read_config()",
            "pages/learn/lessons.py": "from vitkit.interpret.maps import draw\n",
            "pages/explain/lessons.py": "import torch",
            # a private helper and a parameter may share their name with a function of another module
            "interpret/maps.py": "def draw(split): return split\ndef split(): ...",
            "data/order.py": "import vitkit.data.sources.open\nvitkit.data.sources.open.split()",
            # tables keyed by class, a class that is no model, and a task's constructor
            "fit/tables.py": "from vitkit.models.vit import Answer, ViT\nTABLE = {ViT: 1}\nTABLE[type(model)]\n"
            "type(model) in TABLE\nisinstance(answer, Answer)\nViT(2).depth == 3\nfrom lightning import Trainer",
            "tasks/classify.py": "from vitkit.models import ViT\n"
            "class Classify:\n    def __init__(self, model): assert isinstance(model, ViT)\ndef main(): ...",
            "bench/timing.py": "def main(): ...\ndef compare(): ...",
            "bench/loading_time.py": "def compare(): ...",
            "commands/bench.py": "from vitkit.bench.timing import compare\nfrom vitkit.bench import loading_time\n"
            "import vitkit\nloading_time.compare(vitkit.__version__)\ndef main(): ...",
            "cli.py": "TABLE = ['vitkit.commands.bench']\nimport_module(TABLE[0]).main()",
            "../train.py": "from vitkit.cli import main",
            "nn/core.py": "import torch\nfrom jaxtyping import Float\nscores.masked_fill(mask, -1.5)\n"
            "scores.masked_fill(mask, -torch.inf)\nx < 10**9\nx = -(10**3)",
            "fit/scores.py": "import math, yaml\nimport numpy as np\nbest = -math.inf\nyaml.safe_load(f)\n"
            "model.eval()\nnp.load(f, allow_pickle=False)",
            "retrieval/files.py": "time = max(-(2**62), time)",
            "data/held_out_pairs.py": "",
            "data/hidden_patches.py": "",
            "fit/early_stopping.py": "",
            "fit/plain.py": "from importlib import import_module\nimport_module('matplotlib')",
        },
    )
    assert {get_rule_name(guard): faults for guard in structure.GUARDS if (faults := guard(package))} == {}


def test_helpers_with_the_name_of_a_shared_function_are_listed_separately(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            "data/a.py": "def split(): ...",
            "data/b.py": "def split(): ...",
            "fit/c.py": "from vitkit.data.a import split",
        },
    )
    assert structure.find_homonyms(package) == {}
    assert structure.find_homonyms(package, helpers=True) == {"split": ["vitkit.data.a", "vitkit.data.b"]}


def test_figures_count_lines_cycles_imports_and_arguments(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            **MODELS,
            "data/a.py": "import vitkit.data.b\nclass A:\n    def __init__(self, x, *, y, z=1): ...",
            "data/b.py": "def f():\n    import vitkit.data.a\nclass B(NamedTuple):\n    x: int\n    y: int",
            "commands/learn.py": "def main():\n    import vitkit.data.b",
        },
    )
    assert structure.count_lines(package)["data"] == (3, 8)
    assert structure.find_reach(package, "vitkit.commands.learn") == {
        "vitkit.commands.learn",
        "vitkit.data.a",
        "vitkit.data.b",
    }
    text = structure.format_figures(package)
    for line in (
        "import cycles: 1",
        "  2: vitkit.data.a, vitkit.data.b",
        "    3 vitkit.data.a.A",
        "    2 vitkit.data.b.B",
        "  learn             3",
        "  data              3       8",
    ):
        assert line in text.splitlines()
