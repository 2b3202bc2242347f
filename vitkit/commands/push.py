"""`vitkit push`: upload a model folder to the Hugging Face hub, with a model card made from its run."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from vitkit.commands.options import add_overwrite
from vitkit.convert.hub_upload import CARD, prepare_upload, push
from vitkit.support.errors import escape_controls


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        "vitkit push",
        description="Upload a model folder to the Hugging Face hub, with a model card made from the run that wrote "
        "it: data, hyperparameters, and results with their baselines. vitkit opens it as hf:USER/NAME.",
        epilog=USE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="a model folder, such as runs/classify_digits/model")
    parser.add_argument("repository", help="USER/NAME; created if it does not exist")
    parser.add_argument("--private", action="store_true", help="create the repository as private")
    parser.add_argument("--revision", help="a branch, created if it does not exist (default: main)")
    parser.add_argument("--license", help="the hub's name of a license, such as apache-2.0 (default: none)")
    add_overwrite(parser, "replace a model in the repository by a new commit; its README.md stays")
    parser.add_argument("--dry-run", action="store_true", help="upload nothing; show the card and list the files")
    options = parser.parse_args(arguments)

    if options.dry_run:
        with TemporaryDirectory() as temporary:
            folder = prepare_upload(options.model, options.repository, Path(temporary), options.license)
            print(escape_controls((folder / CARD).read_text("utf-8")))
            for path in sorted(folder.iterdir()):
                print(f"{path.name}  {path.stat().st_size / 1e6:,.3f} MB")
        return 0
    url = push(
        options.model,
        options.repository,
        private=options.private,
        revision=options.revision,
        license=options.license,
        overwrite=options.overwrite,
    )
    print(f"{url}\nvitkit predict hf:{options.repository} PICTURES")
    return 0


USE = """\
first, once:  hf auth login
examples:
  vitkit push runs/classify_digits/model me/digits --dry-run
  vitkit push runs/classify_digits/model me/digits --private --license apache-2.0
  vitkit predict hf:me/digits picture.png
"""
