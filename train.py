"""`python train.py fit --config ...` is `vitkit fit --config ...`."""

import sys

from vitkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
