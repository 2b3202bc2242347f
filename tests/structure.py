"""The structure of the package, read from its source without importing it: imports, layers, names, checks on families.

`python tests/structure.py [ROOT]` prints the figures of the checkout at ROOT (default: this one).
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

# From bottom to top. A subpackage imports from the layers below its own, and from itself.
LAYERS = (
    ("nn", "support"),
    ("models", "data"),
    ("losses", "optim", "generation"),
    ("bundle",),
    ("convert",),
    ("inference",),
    ("evaluation",),
    ("tasks", "interpret", "retrieval"),
    ("fit", "pages"),
    ("bench",),
    ("commands",),
    ("cli",),
    ("train",),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}
LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}
USES_LIGHTNING = {"data", "tasks", "fit", "bench", "train"}
# Functions that several modules of a subpackage define, as its protocol.
PROTOCOLS = {
    "convert": {"read_config", "write_config", "to_vitkit", "from_vitkit"},
    "bench": {"compare"},
}
LIBRARIES = ("convert/timm", "convert/hf", "convert/openclip")
# Words in -ed and -ing that are nouns or verbs; all others count as participles.
NOUNS = {"embed", "embedding", "nesting", "packing", "seed", "speed", "timing"}
IRREGULAR = {"drawn", "found", "given", "held", "kept", "known", "made", "read", "seen", "shown", "told", "written"}
TERMS = ("held_out",)  # terms of the field with a participle
FOREIGN = ("timm", "open_clip", "transformers")


class Import(NamedTuple):
    source: str  # the importing module
    line: int
    target: str  # the imported module, of this package or of a library
    symbol: str | None  # the name taken from it; None for the module itself


class Definition(NamedTuple):
    module: str
    name: str


class Check(NamedTuple):
    module: str
    line: int
    code: str
    classes: frozenset[str]


@dataclass(frozen=True)
class Package:
    """The modules of `vitkit` below a root, and the root's train.py."""

    root: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """Return the file of each module."""
        paths = [*sorted((self.root / "vitkit").rglob("*.py")), *self.root.glob("train.py")]
        dotted = {".".join(path.relative_to(self.root).with_suffix("").parts): path for path in paths}
        return {name.removesuffix(".__init__"): path for name, path in dotted.items()}

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        return {module: ast.parse(path.read_text("utf-8")) for module, path in self.files.items()}

    @cached_property
    def stub(self) -> ast.Module:
        """Return the stub of the lazy names; empty if `vitkit/__init__.py` has them under TYPE_CHECKING."""
        path = self.root / "vitkit" / "__init__.pyi"
        return ast.parse(path.read_text("utf-8") if path.exists() else "")

    @cached_property
    def imports(self) -> list[Import]:
        """Return all imports, including those in functions, under TYPE_CHECKING and by `import_module`.

        A module that is used as an attribute of a package, as in `vitkit.data.order.shuffle`, counts as imported.
        """
        trees = [*self.trees.items(), ("vitkit", self.stub)]
        edges = list(dict.fromkeys(edge for module, tree in trees for edge in self._find_imports(module, tree)))
        pairs = {(edge.source, edge.target) for edge in edges}
        for module, tree in self.trees.items():
            for edge in self._find_attribute_imports(module, tree):
                if (edge.source, edge.target) not in pairs:
                    pairs.add((edge.source, edge.target))
                    edges.append(edge)
        return edges

    def _find_attribute_imports(self, module: str, tree: ast.Module) -> Iterator[Import]:
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner and (chain := _split_name(node)):
                start, symbol = self.bindings[module].get(chain[0], ("", ""))
                target, rest = self.follow(start, chain[1:])
                if symbol is None and target != start:
                    yield Import(module, node.lineno, target, rest[0] if rest else None)

    def _find_imports(self, module: str, tree: ast.Module) -> Iterator[Import]:
        names = {self.full_name(module, node).split(".")[-1] for node in ast.walk(tree)}
        dynamic = "import_module" in names
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    yield from (Import(module, node.lineno, alias.name, None) for alias in node.names)
                case ast.ImportFrom(module=str(target), level=level) if level == 0 or (module == "vitkit"):
                    target = f"vitkit.{target}" if level else target
                    for alias in node.names:
                        inner = f"{target}.{alias.name}"
                        edge = (inner, None) if inner in self.files else (target, alias.name)
                        yield Import(module, node.lineno, *edge)
                case ast.Constant(value=str(target)) if dynamic and target in self.files:
                    yield Import(module, node.lineno, target, None)

    @cached_property
    def bindings(self) -> dict[str, dict[str, tuple[str, str | None]]]:
        """Return, for each module, the imported module and symbol of its local names."""
        tables: dict[str, dict[str, tuple[str, str | None]]] = {}
        for module, tree in self.trees.items():
            table = tables[module] = {}
            for node in ast.walk(tree):
                match node:
                    case ast.Import():
                        for alias in node.names:
                            root = alias.name.split(".")[0]
                            table[alias.asname or root] = (alias.name if alias.asname else root, None)
                    case ast.ImportFrom(module=str(target), level=0):
                        for alias in node.names:
                            inner = f"{target}.{alias.name}"
                            edge = (inner, None) if inner in self.files else (target, alias.name)
                            table[alias.asname or alias.name] = edge
        return tables

    def follow(self, module: str, chain: list[str]) -> tuple[str, list[str]]:
        """Follow attributes of a module to a submodule. Return the submodule and the remaining attributes."""
        while chain and f"{module}.{chain[0]}" in self.files:
            module, chain = f"{module}.{chain[0]}", chain[1:]
        return module, chain

    def full_name(self, module: str, node: ast.AST) -> str:
        """Return the dotted name of an expression, resolved through the module's imports; "" if it is no name."""
        if not (chain := _split_name(node)):
            return ""
        target, symbol = self.bindings[module].get(chain[0], (chain[0], None))
        return ".".join([target, *([symbol] if symbol else []), *chain[1:]])

    @cached_property
    def definitions(self) -> dict[Definition, ast.AST]:
        """Return the functions and classes at the top level of each module, including those in `if` and `try`."""
        return {
            Definition(module, node.name): node
            for module, tree in self.trees.items()
            for node in _walk_top_level(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }

    @cached_property
    def constants(self) -> dict[Definition, ast.expr]:
        """Return the values assigned to single names at the top level of each module."""
        values: dict[Definition, ast.expr] = {}
        for module, tree in self.trees.items():
            for node in _walk_top_level(tree):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value):
                        values[Definition(module, name)] = value
                    case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                        values[Definition(module, name)] = value
        return values

    @cached_property
    def public_names(self) -> set[str]:
        """Return the names that the stub or `vitkit/__init__` imports from modules, and their aliases."""
        trees = [tree for tree in (self.trees.get("vitkit"), self.stub) if tree]
        return {
            name
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module and (node.level or node.module.startswith("vitkit."))
            for alias in node.names
            for name in (alias.name, alias.asname or alias.name)
        }

    def find_definition(self, module: str, name: str) -> Definition | None:
        """Return the definition of a name in a module, also through re-exports; None outside the package."""
        visited: set[tuple[str, str]] = set()
        while module in self.files and (module, name) not in visited:
            if Definition(module, name) in self.definitions:
                return Definition(module, name)
            visited.add((module, name))
            target, symbol = self.bindings[module].get(name, ("", None))
            if symbol is None:
                return None
            module, name = target, symbol
        return None


def get_subpackage(module: str) -> str:
    """Return the first part of a module's name below `vitkit`."""
    return module.split(".")[1] if "." in module else module


def _get_last_part(node: ast.AST) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _split_name(node: ast.AST) -> list[str]:
    """Return the parts of a dotted name `a.b.c`; [] for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (parts := _split_name(node.value)):
        return [*parts, node.attr]
    return []


def _walk_top_level(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from _walk_top_level(node)


# ---- imports and layers


def list_internal_imports(package: Package) -> list[Import]:
    """Return the imports between modules of the package, without the lazy table of `vitkit/__init__`."""
    return [
        edge
        for edge in package.imports
        if edge.source != "vitkit" and edge.target != edge.source and edge.target in set(package.files) - {"vitkit"}
    ]


def find_cycles(package: Package) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan, 1972), the largest first."""
    targets: dict[str, set[str]] = defaultdict(set)
    for edge in list_internal_imports(package):
        targets[edge.source].add(edge.target)
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in sorted(targets[module]):
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            members = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(members) > 1:
                cycles.append(sorted(members))

    for module in sorted(package.files):
        if module not in order:
            visit(module)
    return sorted(cycles, key=len, reverse=True)


def find_reach(package: Package, start: str) -> set[str]:
    """Return the modules that a module may import, directly or indirectly, including imports in functions."""
    targets: dict[str, set[str]] = defaultdict(set)
    for edge in list_internal_imports(package):
        targets[edge.source].add(edge.target)
    modules, rest = set(), {start} & package.files.keys()
    while rest:
        modules |= rest
        rest = {target for module in rest for target in targets[module]} - modules
    return modules


def check_cycles(package: Package) -> list[str]:
    """Report import cycles, including those through imports in functions."""
    edges = list_internal_imports(package)
    return [
        f"cycle of {len(members)} modules: "
        + "; ".join(
            f"{edge.source}:{edge.line} -> {edge.target}"
            for edge in edges
            if edge.source in members and edge.target in members
        )
        for members in find_cycles(package)
    ]


def check_places(package: Package) -> list[str]:
    """Report modules that belong to no layer."""
    return [
        f"{module}: {get_subpackage(module)} has no place in LAYERS"
        for module in package.files
        if module != "vitkit" and get_subpackage(module) not in RANKS
    ]


def check_layers(package: Package) -> list[str]:
    """Report imports from other subpackages of the same layer or from higher layers."""
    faults = []
    for edge in list_internal_imports(package):
        here, there = get_subpackage(edge.source), get_subpackage(edge.target)
        if here != there and {here, there} <= RANKS.keys() and RANKS[there] >= RANKS[here]:
            faults.append(f"{edge.source}:{edge.line} -> {edge.target}")
    return list(dict.fromkeys(faults))


def check_dynamic_imports(package: Package) -> list[str]:
    """Report imports of computed names outside `cli`, which the other checks cannot follow."""
    faults = []
    for module, tree in package.trees.items():
        if module == "vitkit.cli":
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = package.full_name(module, node.func)
            arguments = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg in ("name", None))]
            match arguments[:1]:
                case [ast.Constant(value=str(target))] if not target.startswith("."):
                    plain = True
                case _:
                    plain = False
            if _get_last_part(node.func) == "__import__" or (name == "importlib.import_module" and not plain):
                faults.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    return faults


def check_absolute(package: Package) -> list[str]:
    """Report relative imports."""
    return [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, tree in package.trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def check_root(package: Package) -> list[str]:
    """Report imports of public names from `vitkit` itself, which hide the module that is needed."""
    faults = [
        f"{edge.source}:{edge.line}: {edge.symbol} of vitkit"
        for edge in package.imports
        if edge.target == "vitkit" and edge.symbol in package.public_names
    ]
    for module, node, chain in _find_attributes(package):
        if package.bindings[module].get(chain[0]) == ("vitkit", None) and chain[1] in package.public_names:
            faults.append(f"{module}:{node.lineno}: {chain[1]} of vitkit")
    return faults


def check_trunk(package: Package) -> list[str]:
    """Report imports of `nn` other than torch, jaxtyping and the standard library."""
    allowed = {"torch", "jaxtyping", "vitkit", *sys.stdlib_module_names}
    return [
        f"{edge.source}:{edge.line} -> {edge.target}"
        for edge in package.imports
        if get_subpackage(edge.source) == "nn" and edge.target.split(".")[0] not in allowed
    ]


def check_lightning(package: Package) -> list[str]:
    """Report imports of Lightning outside the subpackages that train."""
    return [
        f"{edge.source}:{edge.line} -> {edge.target}"
        for edge in package.imports
        if edge.target.split(".")[0] in LIGHTNING and get_subpackage(edge.source) not in USES_LIGHTNING
    ]


# ---- names


def _find_attributes(package: Package) -> Iterator[tuple[str, ast.Attribute, list[str]]]:
    """Yield the dotted names `a.b.c` of all modules as lists of their parts."""
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (chain := _split_name(node)):
                yield module, node, chain


def find_shared(package: Package) -> set[Definition]:
    """Return the functions and classes that another module imports, by name or as an attribute of their module."""
    uses = {(edge.source, edge.target, edge.symbol) for edge in package.imports if edge.symbol}
    for module, _, chain in _find_attributes(package):
        target, symbol = package.bindings[module].get(chain[0], ("", ""))
        if symbol is None:
            target, rest = package.follow(target, chain[1:])
            if rest:
                uses.add((module, target, rest[0]))
    definitions = {
        (source, package.find_definition(target, symbol)) for source, target, symbol in uses if symbol is not None
    }
    return {definition for source, definition in definitions if definition and definition.module != source}


def find_homonyms(package: Package, helpers: bool = False) -> dict[str, list[str]]:
    """Return the names of functions and classes with several definitions, and the modules that define them.

    A public name has one definition in the package. Any other name has one among the definitions that another module
    imports; with `helpers`, definitions that only their own module uses count too. Names with an underscore and `main`
    are exempt.
    """
    shared = find_shared(package)
    names = {definition.name for definition in shared}
    modules: dict[str, list[str]] = defaultdict(list)
    for definition in package.definitions:
        name = definition.name
        counts = name in names if helpers else definition in shared
        if (counts or name in package.public_names) and not name.startswith("_") and name != "main":
            modules[name].append(definition.module)
    return {name: homes for name, homes in sorted(modules.items()) if len(homes) > 1 and not _is_protocol(name, homes)}


def _is_protocol(name: str, modules: Iterable[str]) -> bool:
    return all(name in PROTOCOLS.get(get_subpackage(module), ()) for module in modules)


def check_names(package: Package) -> list[str]:
    """Report names of functions and classes with several definitions."""
    return [f"{name}: {', '.join(modules)}" for name, modules in find_homonyms(package).items()]


def check_lazy_names(package: Package) -> list[str]:
    """Report public names that a module of the top level would shadow once it is imported."""
    modules = {get_subpackage(module) for module in package.files if module.startswith("vitkit.")}
    return [f"{name}: public name and module of the top level" for name in sorted(package.public_names & modules)]


def check_file_names(package: Package) -> list[str]:
    """Report file names that occur twice, except intended ones."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in package.files.values():
        if path.stem != "__init__" and path.name != "train.py":
            places[path.stem].append(path.parent.relative_to(package.root / "vitkit").as_posix())
    faults = [
        f"{stem}.py: {', '.join(folders)}"
        for stem, folders in sorted(places.items())
        if len(folders) > 1 and not _share_on_purpose(stem, folders)
    ]
    for path in package.files.values():
        if path.stem != "__init__" and path.with_suffix("").is_dir():
            faults.append(f"{path.relative_to(package.root)}: a file and a folder")
    return faults


def _share_on_purpose(stem: str, folders: list[str]) -> bool:
    if stem == "open" and set(folders) == {"data/sources", "convert"}:
        return True
    return set(folders) <= set(LIBRARIES) or all(re.fullmatch(r"pages/\w+", folder) for folder in folders)


def check_participles(package: Package) -> list[str]:
    """Report files and folders whose name is a participle, ends in one, or contains one of `IRREGULAR`.

    In a name of several words, a word in -ed may describe the next word, and a word in -ing is a noun.
    """
    return [
        f"{path.relative_to(package.root)}: a participle"
        for module, path in package.files.items()
        if _is_participle(module.split(".")[-1])
    ]


def _is_participle(name: str) -> bool:
    for term in TERMS:
        name = re.sub(rf"(^|_){term}(_|$)", "_", name)
    words = [word for word in name.split("_") if word]
    if not words or words[-1] in NOUNS:
        return bool(IRREGULAR & set(words))
    ending = "ed|ing" if len(words) == 1 else "ed"
    return bool(IRREGULAR & set(words) or re.fullmatch(f"[a-z]+({ending})", words[-1]))


# ---- families of models


def find_model_classes(package: Package) -> set[str]:
    """Return the dotted names of the classes in `models` that are modules of PyTorch."""
    classes: dict[str, ast.ClassDef] = {
        f"{module}.{name}": node
        for (module, name), node in package.definitions.items()
        if get_subpackage(module) == "models" and isinstance(node, ast.ClassDef)
    }
    names = {"Module"}
    for _ in classes:  # a class may be derived from a later one
        names |= {node.name for node in classes.values() if {_get_last_part(base) for base in node.bases} & names}
    return {dotted for dotted in classes if dotted.split(".")[-1] in names}


def _resolve(package: Package, module: str, node: ast.AST, models: set[str]) -> set[str]:
    """Return the model classes that an expression names, through imports and constants.

    Calls of a class do not count, nor do dicts keyed by class, which are registrations.
    """
    names: set[str] = set()
    calls = {id(part) for call in ast.walk(node) if isinstance(call, ast.Call) for part in ast.walk(call.func)}
    for part in ast.walk(node):
        if id(part) in calls:
            continue
        code = ast.unparse(part) if isinstance(part, ast.Name | ast.Attribute) else ""
        if re.fullmatch(r"\w+(\.\w+)*", code):
            names |= _resolve_name(package, module, code.split("."), models, depth=5)
    return names


def _resolve_name(package: Package, module: str, chain: list[str], models: set[str], depth: int) -> set[str]:
    target, symbol = package.bindings[module].get(chain[0], (module, chain[0]))
    rest = chain[1:]
    if symbol is None:
        target, rest = package.follow(target, rest)
        if not rest:
            return set()
        symbol, rest = rest[0], rest[1:]
    last = rest[-1] if rest else symbol
    if target.split(".")[0] in FOREIGN:
        layers = target.startswith("timm.layers") or [symbol, *rest][0] == "layers"
        return {f"{target}.{'.'.join([symbol, *rest])}"} if last[:1].isupper() and not layers else set()
    if target not in package.files:
        return set()
    definition = package.find_definition(target, symbol)
    if definition:
        return {".".join(definition)} & models
    value = package.constants.get(Definition(target, symbol))
    if value is not None and not isinstance(value, ast.Dict) and depth:
        parts = [part for part in ast.walk(value) if isinstance(part, ast.Name)]
        return {name for part in parts for name in _resolve_name(package, target, [part.id], models, depth - 1)}
    if target != module and symbol in package.bindings[target] and depth:
        return _resolve_name(package, target, [symbol], models, depth - 1)
    return set()


def _list_tested_classes(node: ast.AST) -> list[ast.AST]:
    """Return the expressions that a type check or a pattern compares with."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
            return [classes]
        case ast.Call(func=ast.Attribute(attr="endswith" | "startswith"), args=[ends]):
            return [ends]
        case ast.MatchClass(cls=name):
            return [name]
        case ast.MatchValue(value=ast.Constant() as value):
            return [value]
        case ast.Compare(left=left, comparators=others):
            return [operand for operand in (left, *others) if not isinstance(operand, ast.Call)]
    return []


def _find_class_names(node: ast.AST, names: set[str]) -> set[str]:
    """Return the strings in an expression that are the name or path of a class."""
    texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return {text for text in texts if text.split(".")[-1] in names}


def find_checks(package: Package) -> list[Check]:
    """Return the checks of a model's class outside `models`, `convert` and constructors of tasks."""
    models = find_model_classes(package)
    names = {dotted.split(".")[-1] for dotted in models}
    checks = []
    for module, tree in package.trees.items():
        if get_subpackage(module) in ("models", "convert"):
            continue
        allowed = set()
        if get_subpackage(module) == "tasks":
            allowed = {
                id(part)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef) and node.name == "__init__"
                for part in ast.walk(node)
            }
        for node in ast.walk(tree):
            if id(node) in allowed:
                continue
            for tested in _list_tested_classes(node):
                classes = _resolve(package, module, tested, models) | _find_class_names(tested, names)
                if classes:
                    checks.append(Check(module, getattr(node, "lineno", 0), ast.unparse(node), frozenset(classes)))
    return sorted(checks)


def check_families(package: Package) -> list[str]:
    """Report checks of a model's class outside `models`, `convert` and constructors of tasks.

    `hasattr` and `singledispatch` check the class without its name, and are reported everywhere.
    """
    faults = [f"{check.module}:{check.line}: {check.code}" for check in find_checks(package)]
    dispatch = {
        *("hasattr", "builtins.hasattr", "inspect.getattr_static"),
        *("functools.singledispatch", "functools.singledispatchmethod"),
    }
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            if (name := package.full_name(module, node)) in dispatch:
                faults.append(f"{module}:{getattr(node, 'lineno', 0)}: {name}")
    return faults


# ---- forbidden code


def _compute_value(package: Package, module: str, node: ast.AST) -> float | None:
    """Return the value of an expression of constants; None for any other expression.

    Allowed, so None: `torch.inf`, for masks; `math.inf` in `fit`, the initial best score; powers of two in `retrieval`,
    bounds of time stamps.
    """
    match node:
        case ast.BinOp(left=ast.Constant(2), op=ast.Pow()) if get_subpackage(module) == "retrieval":
            return None
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(number) | float(number)):
            return number
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _compute_value(package, module, operand)
            return -value if isinstance(sign, ast.USub) and value is not None else value
        case ast.BinOp(left=left, op=ast.Pow() | ast.Mult() as operator, right=right):
            pair = _compute_value(package, module, left), _compute_value(package, module, right)
            if pair[0] is None or pair[1] is None:
                return None
            try:
                value = float(pair[0]) ** pair[1] if isinstance(operator, ast.Pow) else float(pair[0]) * pair[1]
            except (OverflowError, ZeroDivisionError):
                return None
            return value if isinstance(value, float) else None  # a root of a negative number is complex
        case ast.Call(func=ast.Name("float"), args=[ast.Constant(str(text))]):
            return float(text) if re.fullmatch(r"[+-]?(inf|infinity|[\d.]+(e\d+)?)", text.strip(), re.I) else None
        case ast.Name() | ast.Attribute():
            name = package.full_name(module, node)
            infinite = name == "numpy.inf" or (name == "math.inf" and get_subpackage(module) != "fit")
            return float("inf") if infinite else None
    return None


def check_masks(package: Package) -> list[str]:
    """Report large negative numbers and infinities, which masks must not be made of."""
    faults = []
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            value = _compute_value(package, module, node)
            if value is not None and value <= -1e4:
                text = "a hand-written infinity" if value == -float("inf") else f"{value:g}"
                faults.append(f"{module}:{getattr(node, 'lineno', 0)}: {text}")
    return list(dict.fromkeys(faults))  # an expression and its parts may have the same value


UNSAFE = {
    *("eval", "exec", "builtins.eval", "builtins.exec"),
    *("pickle.load", "pickle.loads", "pickle.Unpickler"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.full_load_all", "yaml.unsafe_load", "yaml.unsafe_load_all"),
}


def check_loading(package: Package) -> list[str]:
    """Report functions that may run code in the data that they load, under any alias."""
    faults = []
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            if (name := package.full_name(module, node)) in UNSAFE:
                faults.append(f"{module}:{getattr(node, 'lineno', 0)}: {name}")
            if isinstance(node, ast.Call):
                name = package.full_name(module, node.func) or ast.unparse(node.func)
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                pickled = keywords.get("weights_only", "True" if name != "torch.load" else "absent") != "True"
                if pickled or keywords.get("allow_pickle", "False") != "False":
                    faults.append(f"{module}:{node.lineno}: {name}")
    return faults


# ---- words

# Names that fit everything.
VAGUE = {"beside", "found", "held", "named", "own", "one", "seen", "told"}
# Words that a docstring must not begin with.
OPENINGS = {"Of", "That", "Those", "What", "Whatever", "Where", "Whether", "Which", "Who", "Whose", "How", "Why"}
VERBS = {"embed", "feed", "need", "seed"}  # end as participles do
LOSSES = {"squared_error"}  # a loss has the name that papers give it
# Words that a function's name must not begin with.
# "on" is missing because the hooks of Lightning begin with it.
PREPOSITIONS = {"as", "at", "behind", "below", "by", "for", "in", "of", "over", "under", "with", "within"}


class Word(NamedTuple):
    module: str
    line: int
    kind: str  # docstring, function, local or class
    text: str


def _find_locals(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the arguments and the names that a function binds."""
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def find_words(package: Package) -> list[Word]:
    """Return the names and docstrings that break the rules of CONTRIBUTING.md's section on words."""
    words = set()
    for module, tree in package.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").split(maxsplit=1)[:1]
                if first and first[0].strip(",:") in OPENINGS:
                    words.add(Word(module, getattr(node, "lineno", 1), "docstring", first[0]))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                verb = node.name.strip("_").split("_")[0]
                properties = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
                dunder = node.name.startswith("__")
                if not (properties or dunder or _is_verb(verb) or node.name in LOSSES):
                    words.add(Word(module, node.lineno, "function", node.name))
                words |= {
                    Word(module, line, "local", name) for line, name in _find_locals(node) if name.strip("_") in VAGUE
                }
            if isinstance(node, ast.ClassDef) and node.name.strip("_").lower() in VAGUE:
                words.add(Word(module, node.lineno, "class", node.name))
    return sorted(words)


def _is_verb(word: str) -> bool:
    """Return whether a function's name may begin with a word."""
    past = word in IRREGULAR - {"read"} or word.endswith("ed")
    return word in VERBS or not (past or word in PREPOSITIONS)


def find_shared_names(package: Package, most: int = 2) -> dict[str, list[str]]:
    """Return the names of functions and classes that more than `most` modules define, including private ones."""
    homes: dict[str, dict[str, None]] = defaultdict(dict)  # ordered sets, as overloads define a name again
    for module, tree in package.trees.items():
        for node in tree.body:
            names = {"main", *PROTOCOLS.get(get_subpackage(module), ())}
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name not in names:
                homes[node.name][module] = None
    return {name: [*modules] for name, modules in sorted(homes.items()) if len(modules) > most}


def check_words(package: Package) -> list[str]:
    """Report vague names, functions whose name is no verb phrase, and docstrings that begin with a pronoun."""
    words = [f"{word.module}:{word.line}: {word.kind} {word.text}" for word in find_words(package)]
    shared = find_shared_names(package)
    return words + [f"{name} in {len(modules)} modules: {', '.join(modules)}" for name, modules in shared.items()]


# ---- counts


def check_counts(package: Package) -> list[str]:
    """Report texts, but for those of errors, that put a plural behind a count, which may be 1: see `format_count`."""
    faults = []
    for module, tree in package.trees.items():
        raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
        for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and id(node) not in raised):
            for before, value, after in zip([None, *text.values], text.values, text.values[1:], strict=False):
                unit = isinstance(after, ast.Constant) and re.match(r" [a-z]+[^\Ws]s\b", str(after.value))
                whole = isinstance(before, ast.Constant) and str(before.value).endswith((" of ", " at most "))
                if unit and not whole and _is_count(value):
                    faults.append(f"{module}:{text.lineno}: {ast.unparse(value)}{unit[0]}")
    return faults


def _is_count(value: ast.expr) -> bool:
    """Return whether a part of an f-string is a number with commas, or a length."""
    if not isinstance(value, ast.FormattedValue):
        return False
    whole = value.format_spec is not None and ast.unparse(value.format_spec) == "f','"
    return whole or (isinstance(value.value, ast.Call) and ast.unparse(value.value.func) == "len")


GUARDS = (
    check_cycles,
    check_places,
    check_layers,
    check_dynamic_imports,
    check_absolute,
    check_root,
    check_trunk,
    check_lightning,
    check_names,
    check_lazy_names,
    check_file_names,
    check_participles,
    check_families,
    check_masks,
    check_loading,
    check_words,
    check_counts,
)


# ---- figures


def count_lines(package: Package) -> dict[str, tuple[int, int]]:
    """Return the number of files and lines of each subpackage, and of the top level."""
    counts: dict[str, list[int]] = defaultdict(list)
    for path in package.files.values():
        folders = path.relative_to(package.root).parts[1:-1]
        counts[folders[0] if folders else "(top level)"].append(len(path.read_text("utf-8").splitlines()))
    return {name: (len(lines), sum(lines)) for name, lines in sorted(counts.items())}


def count_arguments(package: Package) -> dict[Definition, int]:
    """Return the number of arguments of each class's constructor without `self`, or of fields of a record."""
    counts = {}
    for definition, node in package.definitions.items():
        if isinstance(node, ast.ClassDef):
            constructors = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
            record = any(_get_last_part(base) == "NamedTuple" for base in node.bases) or any(
                "dataclass" in ast.unparse(decorator) for decorator in node.decorator_list
            )
            if constructors:
                signature = constructors[0].args
                counts[definition] = len(signature.posonlyargs + signature.args + signature.kwonlyargs) - 1
            elif record:
                counts[definition] = sum(isinstance(part, ast.AnnAssign) for part in node.body)
    return counts


def format_figures(package: Package) -> str:
    """Return the figures of a package as text."""
    sizes = count_lines(package)
    lines = ["files and lines per subpackage"]
    lines += [f"  {name:<14}{files:>5}{count:>8}" for name, (files, count) in sizes.items()]
    lines.append(f"  {'all':<14}{sum(files for files, _ in sizes.values()):>5}{sum(n for _, n in sizes.values()):>8}")

    cycles = find_cycles(package)
    lines += ["", f"import cycles: {len(cycles)}"]
    lines += [f"  {len(members)}: {', '.join(members)}" for members in cycles]

    for title, faults in {
        "modules without a layer": check_places(package),
        "layer violations": check_layers(package),
        "imports of Lightning elsewhere than in " + ", ".join(sorted(USES_LIGHTNING)): check_lightning(package),
    }.items():
        lines += ["", f"{title}: {len(faults)}", *(f"  {fault}" for fault in faults)]

    lines += ["", "modules that a command may import"]
    for command in ("learn", "predict", "search"):
        lines.append(f"  {command:<14}{len(find_reach(package, f'vitkit.commands.{command}')):>5}")

    checks = find_checks(package)
    files = Counter(check.module for check in checks)
    lines += ["", f"checks on a family, outside models, convert and tasks' constructors: {len(checks)} in {len(files)}"]
    for module, count in files.most_common():
        lines.append(f"  {count:>3} {module}")
        lines += [f"      {check.line}: {check.code}" for check in checks if check.module == module]

    arguments = sorted(count_arguments(package).items(), key=lambda item: (-item[1], item[0]))
    lines += ["", "arguments of the widest constructors"]
    lines += [f"  {count:>3} {'.'.join(definition)}" for definition, count in arguments[:5]]

    homonyms = find_homonyms(package)
    lines += ["", f"public names, or names imported across modules, defined more than once: {len(homonyms)}"]
    lines += [f"  {name}: {', '.join(modules)}" for name, modules in homonyms.items()]
    others = {name: homes for name, homes in find_homonyms(package, helpers=True).items() if name not in homonyms}
    lines += ["", f"names imported across modules that a helper of another module has too: {len(others)}"]
    lines += [f"  {name}: {', '.join(modules)}" for name, modules in others.items()]
    for title, faults in {
        "file names that occur twice": check_file_names(package),
        "participles as file names": check_participles(package),
    }.items():
        lines += ["", f"{title}: {len(faults)}", *(f"  {fault}" for fault in faults)]
    words = find_words(package)
    shared = find_shared_names(package)
    kinds = Counter((word.kind, word.text) if word.kind == "docstring" else (word.kind, "") for word in words)
    lines += ["", f"words against the rules: {len(words)}"]
    lines += [f"  {count:>4} {' '.join(kind)}" for kind, count in sorted(kinds.items())]
    places = Counter(get_subpackage(word.module) for word in words)
    lines += [f"  {count:>4} in {name}" for name, count in sorted(places.items())]
    lines += ["", f"names that more than two modules define: {len(shared)}"]
    lines += [f"  {name}: {', '.join(modules)}" for name, modules in shared.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_figures(Package(Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent.parent).resolve())))
