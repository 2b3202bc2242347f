"""`vitkit push`: a model folder to the hub of Hugging Face, with a card made from its run."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from vitkit.convert.hub_upload import CARD, prepare_upload, push


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit push",
        description="Upload a model folder to the hub of Hugging Face, with a model card made from the run that wrote "
        "it: data, recipe, and figures next to their baselines. It opens anywhere as hf:USER/NAME.",
        epilog=USE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("repository", help="USER/NAME; it is made if it is not there")
    parser.add_argument("--private", action="store_true", help="if it is made, only you may see it")
    parser.add_argument("--revision", help="a branch, made if it is not there (default: main)")
    parser.add_argument("--license", help="as the hub calls it, such as apache-2.0 (default: none is stated)")
    parser.add_argument("--dry-run", action="store_true", help="upload nothing; show the card and list the files")
    options = parser.parse_args(arguments)

    if options.dry_run:
        with TemporaryDirectory() as beside:
            folder = prepare_upload(options.model, options.repository, Path(beside), options.license)
            print((folder / CARD).read_text("utf-8"))
            for path in sorted(folder.iterdir()):
                print(f"{path.name}  {path.stat().st_size / 1e6:,.3f} MB")
        return 0
    where = push(
        options.model,
        options.repository,
        private=options.private,
        revision=options.revision,
        license=options.license,
    )
    print(f"{where}\nvitkit predict hf:{options.repository} PICTURES")
    return 0


USE = """\
first, once:  hf auth login
examples:
  vitkit push runs/classify_digits/model me/digits --dry-run
  vitkit push runs/classify_digits/model me/digits --private --license apache-2.0
  vitkit predict hf:me/digits picture.png
"""
