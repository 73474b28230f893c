"""`python -m anymax` is the `anymax` command."""

import os
import sys

from anymax.cli import main
from anymax.training.signals import PARENT, end_with_parent

if __name__ == "__main__":
    # Taken away, as it is not the parent of the processes that this one starts.
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        end_with_parent(int(parent), sys.stdin.buffer.read)
    sys.exit(main())
