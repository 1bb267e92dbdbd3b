"""Whatever a kernel reaches, and however: an edit of it is a miss of the programs that reach it, and of no other."""

import importlib
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planfreeze.builds import BuildReport, build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import KernelsDiffer
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.plans import Plan
from planfreeze.resolve import check_kernels, resolve_plan
from planfreeze.target import target

FAMILIES = """
from typing import ClassVar
from planfreeze.declarations import named
from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, family, pointer, scalar
from planfreeze.payload import Payload

class ReachPayload(Payload):
    family_name: ClassVar[str] = "reached"
    dialect: str
    way: str

@family(ReachPayload, version=1)
def reached(payload, target):
    module = f"reach.{payload.dialect}_{payload.way}"
    constants = (("helper", named(f"{module}_help:operate")),) if payload.way == "argument" else (("helper", 1),)
    if payload.dialect == "triton":
        source = TritonSource(kernel=f"{module}:kernel", constants=constants)
    else:
        source = CuteSource(kernel=f"{module}:Kernel", constants=constants, launch=LaunchInfo(block=(32, 1, 1)))
    return Definition(
        arguments=(pointer("out", "i32", lambda scalars: 1), scalar("count")),
        source=source,
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
"""
KERNEL = {
    "triton": """
import triton
import triton.language as tl
IMPORTS

@triton.jit
def kernel(out, count, helper: tl.constexpr):
    BODY
    tl.store(out, result)
""",
    "cute": """
import cutlass
from cutlass import Int32, Int64, cute
IMPORTS

class Kernel:
    def __init__(self, *, launch, helper):
        self.launch, self.helper = launch, helper

    @cute.jit
    def __call__(self, out: Int64, count: Int32, stream):
        self.device(out, count).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    @cute.kernel
    def device(self, out: Int64, count: Int32):
        helper = cutlass.const_expr(self.helper)
        BODY
        pointer = cute.make_ptr(Int32, out, cute.AddressSpace.gmem, assumed_align=4)
        cute.make_tensor(pointer, cute.make_layout(1))[0] = Int32(result)
""",
}
# What a kernel imports and does, by the way that it reaches the module beside it.
WAYS = {
    "name": ("from .HELP import operate", "result = operate(count)"),
    "choice": (
        "from .HELP import operate, other",
        "CHOSEN = operate if helper == 1 else other; result = chosen(count)",
    ),
    "argument": ("", "result = helper(count)"),
    "attribute": ("from . import HELP", "result = HELP.operate(count)"),
    "levels": ("from .HELP_middle import middle", "result = middle(count)"),
    "tracing": ("from .HELP import compute", "AMOUNT = compute(3); result = count * amount"),
    "constant": ("from .HELP import AMOUNT", "result = count + AMOUNT"),
    "derived": ("from .HELP import Sizes\nAMOUNT = CONSTANT(Sizes.WIDE)", "result = count + AMOUNT"),
    "default": ("from .HELP import add", "result = add(count)"),
}
HELP = {
    "triton": """
import triton
import triton.language as tl

AMOUNT = tl.constexpr(19)

class Sizes:
    WIDE = 11

@triton.jit
def operate(x):
    return x * 5

@triton.jit
def other(x):
    return x

@triton.jit
def add(x, amount: tl.constexpr = 13):
    return x + amount

@triton.constexpr_function
def compute(x):
    return x * 17
""",
    "cute": """
AMOUNT = 19

class Sizes:
    WIDE = 11

def operate(x):
    return x * 5

def other(x):
    return x

def add(x, amount=13):
    return x + amount

def compute(x):
    return x * 17
""",
}
MIDDLE = {
    "triton": "import triton\nfrom .HELP import operate\n\n@triton.jit\ndef middle(x):\n    return operate(x)\n",
    "cute": "from .HELP import operate\n\ndef middle(x):\n    return operate(x)\n",
}
SPELLED = {
    "triton": {"CHOSEN": "chosen: tl.constexpr", "AMOUNT = compute": "amount: tl.constexpr = compute"},
    "cute": {"CHOSEN": "chosen", "AMOUNT = compute": "amount = compute", "CONSTANT(Sizes.WIDE)": "Sizes.WIDE"},
}
# One operator or value of the module beside the kernel.
EDITS = {
    **dict.fromkeys(("name", "choice", "argument", "attribute", "levels"), ("x * 5", "x - 5")),
    "tracing": ("x * 17", "x - 17"),
    "constant": ("19", "20"),
    "derived": ("WIDE = 11", "WIDE = 12"),
    "default": ("13", "14"),
}
CASES = [(dialect, way) for dialect in KERNEL for way in WAYS]


@dataclass(frozen=True)
class Reached:
    """A package with a kernel for each dialect and way, and a store with all of its programs."""

    folder: Path
    plan: Plan
    store: Store
    toolchains: Path
    report: BuildReport

    @property
    def frozen(self) -> FrozenPlan:
        return self.report.plans[0]

    def keys(self) -> dict[str, str]:
        """The key of every program by the place of its payload."""
        found = {}
        for program in key_plan(self.plan, self.toolchains):
            assert isinstance(program, KeyedProgram), program
            fields = program.payload.to_fields()
            found[f"{fields['dialect']}_{fields['way']}"] = program.key.digest
        return found

    def edit(self, dialect: str, way: str) -> tuple[Path, str]:
        """Edit what one kernel reaches; return the file and its text before."""
        path = self.folder / f"{dialect}_{way}_help.py"
        text = path.read_text()
        assert text.count(EDITS[way][0]) == 1
        path.write_text(text.replace(*EDITS[way]))
        return path, text


def write_package(folder: Path) -> None:
    """Write the package: a kernel and a module beside it for each dialect and way."""
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "families.py").write_text(FAMILIES)
    for dialect, way in CASES:
        imports, body = WAYS[way]
        text = KERNEL[dialect].replace("IMPORTS", imports)
        text = text.replace("BODY", body).replace("HELP", f"{dialect}_{way}_help")
        for short, long in SPELLED[dialect].items():
            text = text.replace(short, long)
        text = text.replace("CONSTANT", "tl.constexpr")
        (folder / f"{dialect}_{way}.py").write_text(textwrap.dedent(text))
        (folder / f"{dialect}_{way}_help.py").write_text(HELP[dialect])
        (folder / f"{dialect}_{way}_help_middle.py").write_text(
            MIDDLE[dialect].replace("HELP", f"{dialect}_{way}_help")
        )


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory, toolchains: Path) -> Iterator[Reached]:
    folder = tmp_path_factory.mktemp("reached")
    write_package(folder / "reach")
    sys.path.insert(0, str(folder))
    families: Any = importlib.import_module("reach.families")
    payloads = tuple(families.ReachPayload(dialect=dialect, way=way) for dialect, way in CASES)
    plan = Plan(model="reach", tp=1, target=target("sm_90a"), payloads=payloads)
    store = Store.open(folder / "store", writable=True)
    report = build_plans([plan], store, jobs=1, toolchains=toolchains)
    assert report.count("compiled") == len(CASES), [o.reason for o in report.outcomes if o.reason]
    yield Reached(folder / "reach", plan, store, toolchains, report)
    sys.path.remove(str(folder))


@pytest.mark.parametrize(("dialect", "way"), CASES)
def test_an_edit_is_a_miss_of_what_reaches_it_alone_and_its_module_is_named(
    reached: Reached, dialect: str, way: str
) -> None:
    before = reached.keys()
    assert sorted(before.values()) == sorted(entry.key for entry in reached.frozen.entries)
    check_kernels(reached.frozen)
    path, text = reached.edit(dialect, way)
    try:
        after = reached.keys()
        with pytest.raises(KernelsDiffer) as raised:
            check_kernels(reached.frozen)
    finally:
        path.write_text(text)
    assert [name for name in before if before[name] != after[name]] == [f"{dialect}_{way}"]
    assert not reached.store.has_record(after[f"{dialect}_{way}"])
    assert raised.value.differing == (f"reach.families:reached (reach.{dialect}_{way}_help)",)
    assert "planfreeze build" in str(raised.value)


def test_every_edit_reaches_the_bytes_and_the_edits_taken_back_are_hits(reached: Reached) -> None:
    before = {entry.fields: entry.blob for entry in reached.frozen.entries}
    edited = [reached.edit(dialect, way) for dialect, way in CASES]
    try:
        report = build_plans([reached.plan], reached.store, jobs=1, toolchains=reached.toolchains)
        assert report.count("compiled") == len(CASES), [o.reason for o in report.outcomes if o.reason]
        after = {entry.fields: entry.blob for entry in report.plans[0].entries}
    finally:
        for path, text in edited:
            path.write_text(text)
    assert [fields for fields in before if before[fields] == after[fields]] == []
    assert not set(before.values()) & set(after.values())
    again = build_plans([reached.plan], reached.store, jobs=1, toolchains=reached.toolchains)
    assert (again.count("reused"), again.plans) == (len(CASES), reached.report.plans)
    resolve_plan(reached.frozen, reached.store).check()
