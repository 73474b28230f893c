"""`python -m anymax.cli.child PID VERB ...`: a command that process PID starts and that ends with it.

Its standard input is a pipe that PID holds and never writes to.
"""

import sys

from anymax.cli import main
from anymax.training.signals import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), sys.stdin.buffer.read)
    sys.exit(main(sys.argv[2:]))
