"""What the programs of a whole model take of an SM, out of their cubins, and the document that shows it."""

import importlib.util
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.models import PlanOptions, load_model
from planfreeze.plans import make_plan
from planfreeze.target import target

ROOT = Path(__file__).parents[2]
ARCHS = ("sm_90a", "sm_120a")
PLANS = tuple(f"ds41-tp4-{arch}" for arch in ARCHS)
PRODUCTS = {"micro_fc1", "micro_fc2", "split_fc1", "split_fc2"}
COMMAND = f"tools/resources.py STORE {' '.join(PLANS)} -o docs/resources.md"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resources", ROOT / "tools/resources.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


resources = load_tool()


@pytest.fixture(scope="module")
def programs(model_store: Store, toolchains: Path) -> tuple[Any, ...]:
    """Every program of ds41 on four ranks, all arms, both architectures."""
    options = PlanOptions(inline_limit=1536, arms=("inline", "expand", "native"))
    plans = [make_plan(load_model("ds41"), tp=4, target=target(arch), options=options) for arch in ARCHS]
    report = build_plans(plans, model_store, jobs=2, toolchains=toolchains)
    assert report.count("failed") == 0, [outcome.reason for outcome in report.outcomes]
    found: tuple[Any, ...] = resources.resolve(model_store, PLANS)
    return found


def families() -> set[str]:
    """Names of the families that ship."""
    texts = [path.read_text() for folder in ("moe", "scales") for path in (ROOT / "kernels" / folder).glob("*.py")]
    return {name for text in texts if "\n@family(" in text for name in re.findall(r'family_name: .* = "(\w+)"', text)}


def test_every_family_is_there_and_none_uses_local_memory(programs: tuple[Any, ...]) -> None:
    assert len(programs) == 36 + 24
    for arch in ARCHS:
        assert {p.payload.family_name for p in programs if p.planned.target.arch == arch} == families()
    assert [program.name for program in programs if program.record.stack_bytes] == []


def test_no_program_loads_or_stores_local_memory(
    programs: tuple[Any, ...], cuobjdump: Callable[[Path, str], str], tmp_path: Path
) -> None:
    for number, program in enumerate(programs):
        cubin = tmp_path / f"{number}.cubin"
        cubin.write_bytes(program.cubin)
        sass = cuobjdump(cubin, "-sass")
        assert "EXIT" in sass
        assert not re.search(r"\b(LDL|STL)\b", sass), program.name
        if program.payload.family_name not in PRODUCTS:
            continue
        if program.planned.target.arch == "sm_120a":
            assert "QMMA.SF.16832.F32.E4M3.E2M1.E8" in sass, program.name
        else:
            products, groups, waits, pipelined = (
                len(re.findall(name, sass))
                for name in ("QGMMA", "WARPGROUP.ARRIVE", "WARPGROUP.DEPBAR", r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1")
            )
            # Products that the compiler serialises are alone in their groups, and all are waited for at once.
            assert groups == waits > 0, program.name
            assert products >= 2 * groups or 2 * pipelined >= groups, program.name


@pytest.mark.parametrize(("arch", "least"), [("sm_90a", 15), ("sm_120a", 8)])
def test_enough_warps_of_every_product_fit_an_sm(programs: tuple[Any, ...], arch: str, least: int) -> None:
    rooms: dict[bool, list[int]] = {True: [], False: []}
    for program in programs:
        if program.planned.target.arch == arch and program.payload.family_name in PRODUCTS:
            found = resources.read_resources(program.record, program.planned.target)
            assert found.blocks * program.record.launch.block[0] >= 32 * least, program.name
            rooms[program.payload.csf_inline].append(found.blocks)
    assert sorted(rooms[True]) == sorted(rooms[False])


def test_the_document_is_what_the_tool_writes(programs: tuple[Any, ...]) -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / ".ci/constraints.txt").read_text(), re.MULTILINE))
    for name in ("triton", "nvidia-cutlass-dsl"):
        if metadata.version(name) != pinned[name]:
            pytest.skip(f"{name} {metadata.version(name)} is not the pinned {pinned[name]} of the document")
    assert (ROOT / "docs/resources.md").read_text() == resources.write_document(programs), f"run {COMMAND}"
