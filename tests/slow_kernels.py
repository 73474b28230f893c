"""Which kernels tests ask for that take minutes: those of Triton in its interpreter, by `make test-kernels`."""

import os

RUNS_SLOW_KERNELS = os.environ.get("ANYMAX_TEST_KERNELS") == "all"
