"""Run one list of commands in two versions of vitkit and compare what they write, to the last digit.

    python tests/frozen/compare.py OLD_REF [NEW_REF]

Both commits are checked out into temporary worktrees and run by this interpreter, one after the other; NEW_REF is HEAD
unless it is given. Every file that the commands write, and what they print, is compared: texts after class paths, times
and the folder's own path are made equal (see normal.py and IGNORED), tensors and arrays exactly, pictures byte by byte.
Each difference is a line; the exit status is 1 if there is any, or if a command fails.

The commands, and the folders they read (before/), are those of the checkout that this script lies in. --keep DIR leaves
what was written in DIR/old and DIR/new.
"""

import argparse
import contextlib
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normal import differences, normalise

HERE = Path(__file__).resolve().parent
SHOWN = 12  # lines about one file

# What differs from run to run, in texts and in JSON, and is no difference.
IGNORED = (
    r'"(?:seconds|samples_per_second)": [\d.e-]+',  # report.json
    r"(?<=, )\d+ s, [\d,]+ pictures/s",  # the end of a run
    r"(?<=, in )[\d.]+ s",  # index
    r"(?<= steps, )[\d.]+ s",  # overfit
)
# Names of files hold times or random numbers there, or the file holds nothing but a process's number.
SKIPPED = ("events", "pictures.db", ".vitkit.lock")

MODELS = ("timm", "hf_vit", "hf_mae", "hf_clip", "openclip", "hf_siglip")
EXPORTS = {"timm": "import_timm", "hf": "import_hf_vit", "mae": "reconstruct/model", "openclip": "import_hf_clip"}
LABELLED = ("--fold=0", "--device=cpu")
QUERY = ("a picture of two", "--model=before/contrast/model", "--device=cpu")
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ZERO_SHOT = ("--classes", *NAMES, "--templates={}", "--no-cache")


def commands(configs: Path) -> Iterator[tuple[str, ...]]:
    """Yield the commands in order: each may use what those before it wrote."""
    from runs import classify, contrast, contrast_words, reconstruct

    yield *classify("classify", 2, configs), "--report.baselines=true"
    yield tuple(reconstruct("reconstruct", 1, configs))
    yield tuple(contrast("contrast", 1, configs))
    for name, learn in (("classify", classify), ("reconstruct", reconstruct), ("contrast", contrast_words)):
        yield tuple(learn(f"before/{name}", 2, configs))  # goes on from last.ckpt
    finetune = ("--pretrained=reconstruct/model", "--data.train=digits", "--trainer.max_epochs=1", "--run=finetune")
    quiet = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.precision=32-true")
    short = ("--threads=1", "--data.workers=0", "--trainer.limit_train_batches=4", "--model.schedule.warmup=1")
    yield ("fit", f"--config={configs / 'finetune_folder.yaml'}", *finetune, *quiet, *short)
    yield ("fit", f"--config={configs / 'classify_digits.yaml'}", "--print_groups", *quiet)
    yield ("overfit", f"--config={configs / 'classify_digits.yaml'}", "--model.model.encoder.depth=1", *quiet)

    yield ("predict", "classify/model", "before/pictures/a", "--out=predict.csv", "--device=cpu")
    yield ("predict", "before/imported/timm", "before/pictures/b", "--out=predict.jsonl", "--device=cpu")
    yield ("predict", "before/imported/hf_vit", "before/pictures/b", "--out=predict.txt", "--top=1", "--device=cpu")
    yield ("evaluate", "classify/model", "digits", *LABELLED, "--out=evaluate_classify")
    yield ("evaluate", "reconstruct/model", "mnist5k", *LABELLED, "--probed=200", "--out=evaluate_reconstruct")
    yield ("evaluate", "contrast/model", "digits", *LABELLED, "--out=evaluate_contrast")
    yield ("zero-shot", "contrast/model", "digits", *LABELLED, *ZERO_SHOT, "--out=zero_shot")
    yield ("zero-shot", "contrast/model", "before/pictures/a", "--unlabelled", *ZERO_SHOT, "--out=zero_shot.csv")
    yield ("features", "classify/model", "digits", "--out=features.npz", "--device=cpu")
    yield ("features", "classify/model", "digits", "--out=features.parquet", "--layers", "0", "--device=cpu")
    dense = ("--unlabelled", "--dense", "--device=cpu")
    yield ("features", "before/imported/timm", "before/pictures/a", *dense, "--out=features.safetensors")
    yield ("features", "contrast/model", "before/pictures/a", "--unlabelled", "--out=features_contrast.npz")
    yield ("reconstruct", "reconstruct/model", "before/pictures/a", "--out=reconstructed")

    yield ("attend", "classify/model", "before/pictures/a", "--out=attend")
    yield ("attend", "before/imported/timm", "before/pictures/b", "--map=rollout", "--json", "--out=attend_rollout")
    yield ("attend", "before/imported/timm", "before/pictures/b", "--map=relevance", "--json", "--out=attend_relevance")
    yield (
        "attend",
        "contrast/model",
        "before/pictures/a",
        "--text",
        "a zero",
        "the two",
        "--json",
        "--out=attend_text",
    )
    yield ("heads", "classify/model", "digits", *LABELLED, "--pictures=32", "--against=untrained", "--out=heads")
    yield ("heads", "before/imported/timm", "before/pictures/a", "--unlabelled", "--how=mean", "--out=heads_mean")
    yield ("explain", "before/imported/timm", "before/pictures/a/02.png", "-o", "explain.html")
    yield ("learn", "-o", "learn.html")

    yield ("search", "before/pictures.db", *QUERY, "--out=search_before.json")
    yield ("index", "before/pictures", "--db=before/pictures.db", "--model=before/contrast/model", "--device=cpu")
    yield ("index", "before/pictures/a", "--db=pictures.db", "--model=before/contrast/model", "--device=cpu")
    yield ("search", "pictures.db", *QUERY, "--out=search.json", "--out=search.csv", "--out=search.html", "--out=x.png")
    yield ("search", "pictures.db", "before/pictures/b/05.png", "--captions", "--out=captions.json", "--device=cpu")
    yield ("search", "pictures.db", "--near-duplicates", "--near=0.98", "--out=near.json", "--device=cpu")

    for name in MODELS:
        yield ("import", f"before/sources/{name}", f"--out=import_{name}")
    for name in MODELS[:-1]:  # of one that pools by attention, it fails
        yield ("describe", f"import_{name}")
    for library, model in EXPORTS.items():
        yield ("export", model, f"--to={library}", f"--out=export_{library}")
    yield ("push", "classify/model", "me/digits", "--dry-run")


def run(out: Path, tree: Path) -> int:
    """Run all commands of a version in the folder `out`; what they print goes to out/printed."""
    import numpy as np
    import torch

    import vitkit
    from vitkit.cli import main

    if not Path(vitkit.__file__).is_relative_to(tree):
        raise SystemExit(f"vitkit must be the one in {tree}, got {vitkit.__file__}")
    torch.set_num_threads(1)
    os.chdir(out)
    (out / "printed").mkdir()
    failed = 0
    for number, command in enumerate(commands(tree / "configs")):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        path = out / "printed" / f"{number:02}_{command[0]}.txt"
        with path.open("w", encoding="utf-8") as file:
            file.write(f"vitkit {' '.join(command)}\n".replace(str(tree), "TREE"))
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                try:
                    status: object = main(command)
                except SystemExit as ended:
                    status = ended.code
                except Exception:
                    status = traceback.format_exc()
        if status != 0:
            failed += 1
            print(f"{out.name}: {path.read_text('utf-8').strip()[-2000:]}\n  ended with {status}")
    return failed


def text_of(path: Path, root: Path) -> str:
    text = path.read_text("utf-8").replace(str(root), "ROOT")
    for pattern in IGNORED:
        text = re.sub(pattern, "IGNORED", text)
    return normalise(text)


def contents(path: Path) -> Any:
    """Return the content of a binary file as JSON values, an array as its type, shape and hash."""
    import numpy as np
    import torch
    from pyarrow import parquet
    from safetensors.torch import load_file

    match path.suffix:
        case ".safetensors":
            return plain(load_file(path))
        case ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return plain(dict(arrays))
        case ".parquet":
            table = parquet.read_table(path)
            return plain({"schema": str(table.schema), **table.to_pydict()})
        case ".ckpt":
            return plain(torch.load(path, map_location="cpu", weights_only=True))
    return digest(path.read_bytes())


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def plain(value: Any) -> Any:
    import numpy as np
    import torch

    match value:
        case torch.Tensor():
            array = value.detach().contiguous()
            data = array.flatten().view(torch.uint8) if array.numel() else array
            return f"{array.dtype} {[*array.shape]} {digest(data.numpy().tobytes())}"
        case np.ndarray():
            return f"{value.dtype} {[*value.shape]} {digest(np.ascontiguousarray(value).tobytes())}"
        case dict():
            return {normalise(str(key)): plain(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [plain(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
    return repr(value)


TEXTS = {".json", ".jsonl", ".csv", ".txt", ".yaml", ".html", ".md", ".svg"}


def compare(old: Path, new: Path, roots: tuple[Path, Path]) -> list[str]:
    """Return a line for each difference of two files."""
    if old.suffix not in TEXTS:
        return list(differences(contents(old), contents(new)))
    before, now = (text_of(path, root) for path, root in zip((old, new), roots, strict=True))
    if before == now:
        return []
    if old.suffix == ".json":
        with contextlib.suppress(json.JSONDecodeError):
            if lines := list(differences(json.loads(unquoted(before)), json.loads(unquoted(now)))):
                return lines
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "old", "new", lineterm="", n=0)
    return [line[:240] for line in lines][2:]


def unquoted(text: str) -> str:
    """Return JSON in which what is ignored is a key again."""
    return re.sub(r"(?<=[\s{,])IGNORED", '"IGNORED": 0', text)


def files(root: Path) -> set[Path]:
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {path for path in paths if not {*path.parts} & {*SKIPPED}}


def compare_all(old: Path, new: Path) -> list[str]:
    lines: list[str] = []
    for path in sorted(files(old) | files(new)):
        if not (new / path).exists() or not (old / path).exists():
            lines.append(f"{path}: only in {'old' if (old / path).exists() else 'new'}")
        elif changes := compare(old / path, new / path, (old.parent, new.parent)):
            more = [f"  and {len(changes) - SHOWN} lines more"] if len(changes) > SHOWN else []
            lines += [f"{path}:", *(f"  {line}" for line in changes[:SHOWN]), *more]
    return lines


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(HERE), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(ref: str, place: Path) -> int:
    """Run the commands in a temporary worktree of a commit, in the folder place/out."""
    tree, out = place / "tree", place / "out"
    out.mkdir(parents=True)
    shutil.copytree(HERE / "before", out / "before")
    shutil.copy(HERE / "before" / "tokenizer.json", out)
    git("worktree", "add", "--detach", "--quiet", str(tree), ref)
    try:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(place / "cache"),
        }
        script = [sys.executable, str(Path(__file__).resolve()), "--run", str(out), str(tree)]
        return subprocess.run(script, env=environment, cwd=out, check=False).returncode
    finally:
        git("worktree", "remove", "--force", str(tree))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD_REF")
    parser.add_argument("new", nargs="?", default="HEAD", metavar="NEW_REF")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder for what was written")
    options = parser.parse_args()
    started = time.perf_counter()
    refs = {"old": git("rev-parse", options.old), "new": git("rev-parse", options.new)}
    with contextlib.ExitStack() as stack:
        place = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitkit-compare-")))
        failed = sum(write(ref, place.resolve() / name) for name, ref in refs.items())
        lines = compare_all(*(place.resolve() / name / "out" for name in refs))
        count = len(files(place.resolve() / "new" / "out"))
    print(*lines, sep="\n", end="\n" if lines else "")
    verdict = f"{sum(not line.startswith(' ') for line in lines)} of {count} files differ"
    seconds = f"{time.perf_counter() - started:.0f} s"
    print(f"{refs['old'][:9]} and {refs['new'][:9]}: {verdict if lines else f'{count} files are equal'}, {seconds}")
    return 1 if lines or failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        raise SystemExit(run(Path(sys.argv[2]), Path(sys.argv[3])))
    raise SystemExit(main())
