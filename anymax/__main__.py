"""`python -m anymax` is the `anymax` command."""

import sys

from anymax.cli import main

if __name__ == "__main__":
    sys.exit(main())
