"""What ``planfreeze diff`` says of an upgrade: the same kernel built by two versions of Triton."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.cache.store import Store
from planfreeze.comparison import Side, compare
from planfreeze.comparison_reports import summarize
from planfreeze.resolve import find_plans

ROOT = Path(__file__).parents[1]

FAMILY = """
from planfreeze.declarations import integer, tensor, triton_family

@triton_family(
    kernel="upgraded.kernels:scale",
    arguments=(tensor("x", "f32"), integer("n", 1, 1 << 20)),
    constants={"BLOCK": 64},
)
def scale(n, BLOCK):
    return (-(-n // BLOCK), 1, 1)
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def scale(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.exp(tl.load(x + offsets, mask=offsets < n)), mask=offsets < n)
"""


def test_an_upgrade_of_triton_is_the_reason_for_every_change_that_it_makes(oldest_triton, tmp_path):
    pytest.importorskip("triton")
    package = tmp_path / "upgraded"
    package.mkdir()
    for name, text in (("__init__", ""), ("families", FAMILY), ("kernels", KERNEL)):
        (package / f"{name}.py").write_text(text)
    build = ["-m", "planfreeze", "build", "--family", "upgraded.families:scale", "--arch", "sm_90a", "--jobs", "1"]
    program, folders = oldest_triton
    for store, interpreter, path in (("old", program, folders), ("new", sys.executable, ())):
        subprocess.run(
            [interpreter, *build, "--store", store],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((*path, str(ROOT), str(tmp_path))), "HOME": str(tmp_path)},
            check=True,
            capture_output=True,
        )
    old, new = (Store.open(tmp_path / name) for name in ("old", "new"))
    found = compare(*(Side(store=store, plans=find_plans(store, None)) for store in (old, new)))
    assert len(found.programs) == 3 and found.causes == ("toolchain",)
    assert {change.state for change in found.programs} <= {"changed", "rekeyed"}
    for change in found.programs:
        assert re.match(r"triton 3\.6\.0 \w{12} -> triton 3\.", dict(change.reasons)["toolchain"])
        assert change.state == "rekeyed" or change.measures or change.opcodes is not None
    assert summarize(found).startswith(f"toolchain changed {found.count('changed')} of 3 programs")
