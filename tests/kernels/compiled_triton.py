"""Compiles Triton's kernels for GPUs that need not be there, and prints what each takes of one, as lines of JSON.

`python -m tests.kernels.compiled_triton few|all`, without TRITON_INTERPRET. Strides and pointers are those of tensors
whose rows are multiples of 16 apart, as Triton sees them when it compiles at the first call.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anymax.kernels.attention import triton as attention
from anymax.kernels.attention import triton_keys, triton_stream, triton_whole
from anymax.kernels.entmax import triton as entmax
from anymax.kernels.entmax import triton_rows

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STRIDES = ("i32",) * 4
TYPES: dict[str, Any] = {
    **dict.fromkeys(("row_stride", "probs_stride", "alpha_stride", "num_rows", "n", "causal_offset"), "i32"),
    **dict.fromkeys(("q_strides", "k_strides", "v_strides", "grad_strides", "mask_strides", "sizes"), STRIDES),
    **dict.fromkeys(("alpha", "sink", "top", "conjugate", "shift", "anchor", "last_probability", "mean"), "*fp32"),
    **dict.fromkeys(("by_alpha", "by_sink"), "*fp32"),
    **dict.fromkeys(("mask", "chosen", "is_chosen"), "*u8"),
    **dict.fromkeys(("listed", "visits"), "*i32"),
    **dict.fromkeys(("scale", "kept_scale"), "fp32"),
    "seed": "*i64",
    "threshold": "i64",
}


class Case(NamedTuple):
    """A kernel with its constants, for numbers of a type on a target."""

    target: str
    name: str
    kernel: Any
    dtype: str
    constants: dict[str, Any]


def cases(*, runs_all: bool) -> Iterator[Case]:
    for target in TARGETS:
        yield from rows(target, "bf16", 1000)
        yield from whole(target, "bf16", 32)
        if runs_all:
            for dtype, n in (("fp16", 32), ("bf16", 8192), ("bf16", 20_000), ("fp32", 1000), ("fp32", 20_000)):
                yield from rows(target, dtype, n)
            for dtype, num_keys in (("fp16", 64), ("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp32", 128)):
                yield from whole(target, dtype, num_keys)
            for dtype in ("fp16", "bf16", "fp32"):
                yield from stream(target, dtype)


def rows(target: str, dtype: str, n: int) -> Iterator[Case]:
    constants = entmax.blocks_of(n) if n <= entmax.LONGEST_ON_CHIP else {"BLOCK_N": entmax.PART, "num_warps": 8}
    kinds = ("forward", "backward") if n <= entmax.LONGEST_ON_CHIP else ("forward_long", "backward_long")
    for kind in kinds:
        yield Case(target, f"rows {kind} {n}", getattr(triton_rows, kind), dtype, constants)


def whole(target: str, dtype: str, num_keys: int) -> Iterator[Case]:
    blocks = attention.blocks_of_rows(num_keys, (64, 64), DTYPES[dtype], is_amd=target == "gfx942")
    for kernel in (triton_whole.forward, triton_whole.backward_of_queries):
        yield Case(target, f"whole {kernel.__name__} {num_keys}", kernel, dtype, of_attention(target, blocks))


def stream(target: str, dtype: str) -> Iterator[Case]:
    blocks = attention.blocks_of_tiles((64, 64), DTYPES[dtype])
    for kernel in (triton_stream.forward, triton_stream.backward_of_queries):
        yield Case(target, f"stream {kernel.__name__}", kernel, dtype, of_attention(target, blocks))
    constants = of_attention(target, attention.of_keys(blocks))
    yield Case(target, "stream backward_of_keys", triton_keys.backward_of_keys, dtype, constants)


def of_attention(target: str, blocks: attention.Blocks) -> dict[str, Any]:
    """With a mask, causal, a sink and dropout at once."""
    is_amd = target == "gfx942"
    constants = {"IS_CAUSAL": True, "WIDTH": 64, "VALUE_WIDTH": 64, "KNOWS_CHOSEN": True}
    return {**constants, "PRECISION": attention.precision(is_amd=is_amd), **blocks.options(is_amd=is_amd)}


def compiled(case: Case) -> dict[str, Any]:
    signature: dict[str, Any] = {}
    constants: dict[tuple[int, ...], Any] = {}
    hints: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(case.kernel.arg_names):
        if name in case.constants:
            signature[name], constants[place,] = "constexpr", case.constants[name]
        elif name.endswith("strides"):
            signature[name], constants[place, 3] = (*STRIDES[:3], "constexpr"), 1
            hints |= {(place, dim): [["tt.divisibility", 16]] for dim in range(3)}
        else:
            signature[name] = TYPES.get(name, f"*{case.dtype}")
            if signature[name][0] == "*":
                hints[place,] = [["tt.divisibility", 16]]
    if case.kernel.arg_names[0] != "query":
        signature["sizes"] = ("i32", "i32")
    options = {name: case.constants[name] for name in ("num_warps", "num_stages", "maxnreg") if name in case.constants}
    source = ASTSource(case.kernel, signature, constants, hints)
    binary = triton.compile(source, target=TARGETS[case.target], options=options)
    found = {"target": case.target, "kernel": case.name, "dtype": case.dtype, "shared": binary.metadata.shared}
    return found | (of_assembly(binary.asm["amdgcn"]) if case.target == "gfx942" else of_cubin(binary.asm["cubin"]))


def of_cubin(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert match is not None, usage
    return {"registers": int(match[1]), "spilled": int(match[2])}


def of_assembly(assembly: str) -> dict[str, int]:
    """`spilled` in bytes of each lane."""
    counts = {name: re.search(rf"\.{name}:\s*(\d+)", assembly) for name in ("vgpr_count", "private_segment_fixed_size")}
    registers, private = (int(match[1]) for match in counts.values() if match is not None)
    return {"registers": registers, "spilled": private}


if __name__ == "__main__":
    for case in cases(runs_all=sys.argv[1] == "all"):
        print(json.dumps(compiled(case)), flush=True)
