"""Kernels without the flag of inline scales: what they compile to is what they would compile to if it did not exist.

The kernel text is copied with every inline branch taken out, and both are compiled for both architectures.
"""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from planfreeze.kernels.moe.programs import enumerate_programs
from planfreeze.models import Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.target import target

ROOT = Path(__file__).parents[2]
ARCHS = ("sm_90a", "sm_120a")
FLAGS = {"csf_inline", "is_inline"}
PRODUCTS = ("micro_fc1", "micro_fc2", "split_fc1", "split_fc2")
KERNELS = [f"moe/{family}_{arch}_cute.py" for family in PRODUCTS for arch in ARCHS]
MODEL = {
    "name": "small",
    "hidden": 512,
    "intermediate": 192,
    "experts": 8,
    "top_k": 2,
    "weight_format": "mxfp4",
    "capacities": [8, 128, 512, 4096],
    "id_types": ["int32"],
}
BUILD = """
import json, sys
from pathlib import Path
import planfreeze
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.kernels.moe.programs import enumerate_programs
from planfreeze.models import PlanOptions, load_model
from planfreeze.plans import Plan
from planfreeze.resolve import program_name
from planfreeze.target import target

model, families, archs, folder = load_model(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(","), sys.argv[4]
plans = []
for arch in archs:
    listed = enumerate_programs(model, tp=1, target=target(arch), options=PlanOptions(inline_limit=1536))
    payloads = tuple(payload for payload in listed if payload.family_name in families)
    plans.append(Plan(model=model.name, tp=1, target=target(arch), payloads=payloads))
report = build_plans(plans, Store.open(Path(folder) / "store", writable=True), jobs=2, toolchains=Path(folder))
assert report.count("failed") == 0, [outcome.reason for outcome in report.outcomes]
blobs = {
    f"{outcome.record.arch} {program_name(outcome.program.payload)}": outcome.record.blob for outcome in report.outcomes
}
print(json.dumps({"file": planfreeze.__file__, "blobs": blobs}))
"""


class Strip(ast.NodeTransformer):
    """Takes out what only inline variants are made of: branches on the flag, and names that nothing uses then."""

    def __init__(self) -> None:
        self.branches = 0

    def visit_If(self, node: ast.If) -> Any:  # ast's own names
        self.generic_visit(node)
        if not is_flag(node.test):
            return node
        self.branches += 1
        return node.orelse or None

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self.generic_visit(node)
        if not is_flag(node.test):
            return node
        self.branches += 1
        return node.orelse

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.generic_visit(node)
        return None if is_inline_name(node.name) else node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self.generic_visit(node)
        return None if is_inline_name(node.name) else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        node.names = [alias for alias in node.names if not is_inline_name(alias.name)]
        return node if node.names else None


def is_flag(test: ast.expr) -> bool:
    """Whether a condition is the flag alone, as a constant or as it is."""
    if isinstance(test, ast.Call) and ast.unparse(test.func).endswith("const_expr"):
        test = test.args[0]
    return (isinstance(test, ast.Name) and test.id in FLAGS) or (isinstance(test, ast.Attribute) and test.attr in FLAGS)


def is_inline_name(name: str) -> bool:
    """Whether a class or function is there for inline scales alone."""
    return name.startswith(("Inline", "rebuild_inline"))


def strip(path: Path) -> int:
    """Rewrite a file without its inline branches; return how many there were."""
    stripper = Strip()
    tree = stripper.visit(ast.parse(path.read_text()))
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    return stripper.branches


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The project as it is, and a copy without inline branches in kernel text."""
    copy = tmp_path_factory.mktemp("stripped")
    for folder in ("planfreeze", "kernels", "cache"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    branches = {name: strip(copy / "kernels" / name) for name in KERNELS}
    assert all(branches.values()), branches
    shared = {path.name: strip(path) for path in (copy / "kernels/mma").glob("*.py")}
    assert shared["stage_sm_90a.py"] >= 1
    return {"whole": ROOT, "stripped": copy}


def read_names(path: Path) -> set[str]:
    """Every name that the code of a file uses."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_nothing_of_the_inline_variants_is_left_in_the_stripped_text(trees: dict[str, Path]) -> None:
    for name in KERNELS:
        used = read_names(trees["stripped"] / "kernels" / name)
        assert not [found for found in used if is_inline_name(found)], name
    rebuilds = [
        path.name for path in (trees["stripped"] / "kernels/mma").glob("*.py") if "rebuild_inline" in path.read_text()
    ]
    assert rebuilds == []


def test_cubins_without_the_flag_are_those_of_kernels_that_do_not_have_it(
    trees: dict[str, Path], tmp_path: Path, interpreter: Any
) -> None:
    model = tmp_path / "small.toml"
    model.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in MODEL.items()))
    found = {}
    for name, tree in trees.items():
        folder = tmp_path / name
        folder.mkdir()
        arguments = (str(model), ",".join(PRODUCTS), ",".join(ARCHS), str(folder))
        made = json.loads(interpreter.run(BUILD, *arguments, PYTHONPATH=str(tree)))
        assert made["file"] == str(tree / "planfreeze/__init__.py")
        found[name] = made["blobs"]
    assert len(found["whole"]) == 8 + 4
    assert found["stripped"] == found["whole"]


def test_payloads_without_the_flag_do_not_name_it() -> None:
    model = Model(**{**MODEL, "capacities": (8, 4096), "id_types": ("int32",)})  # type: ignore[arg-type]
    options = PlanOptions(inline_limit=1536)
    listed: tuple[Payload, ...] = enumerate_programs(model, tp=1, target=target("sm_90a"), options=options)
    flagged = [payload for payload in listed if "csf_inline" in payload.to_fields()]
    assert {payload.family_name for payload in flagged} == set(PRODUCTS)
    for payload in flagged:
        assert b"inline" not in payload.encode()
        changed = type(payload).from_fields({**payload.to_fields(), "csf_inline": True})
        assert b"csf_inline" in changed.encode()
        assert changed != payload
