"""The house: who may import whom, what importing costs, and who reads the environment."""

import ast
import json
from functools import cache

import pytest

from planfreeze.explanations import family_modules

from .modules import FACADES, FRAMEWORK, imports_of, is_kernel, parse, read_modules

# Lowest first. A part is a module or a package below planfreeze; it may import its own layer and those below.
LAYERS = (
    ("errors", "settings", "budgets", "exposition", "keepers", "search_path", "shared_logs", "spellings", "uses"),
    (
        "cache",
        "decoding",
        "dtypes",
        "elf",
        "hooks",
        "host_objects",
        "memory",
        "module_files",
        "sources",
        "toolchain",
        "entry_points",
    ),
    ("target", "payload", "family", "choices", "constants", "occupancy", "notes", "plan_names"),
    ("declared", "declarations"),
    ("recorded",),
    ("key", "record", "inspection"),
    ("models",),
    ("plans",),
    ("frozen_plans",),
    ("resolve", "explanations", "compilers", "holdings", "recordings", "tuning"),
    ("facts", "disassembly"),
    ("selection", "comparison"),
    (
        "device",
        "_tensors",
        "tensor_checks",
        "binding",
        "launching",
        "scratch",
        "workers",
        "programs",
        "guard",
        "processes",
        "keyed",
        "verification",
    ),
    ("plan_sources",),
    ("nearest", "statistics", "outcomes", "slots", "excesses", "builds", "sessions", "replays"),
    ("packs", "collection", "repairs"),
    ("serving", "differences"),
    ("recorders",),
    ("inheritance", "startup"),
    (
        "process_session",
        "progress",
        "reports",
        "program_reports",
        "comparison_reports",
        "store_reports",
        "pages",
        "runs",
        "doctor",
    ),
    ("pytest_plugin", "cli"),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

COMPILERS = ("triton", "cutlass", "cuda", "torch")
ENVIRONMENT_READERS = {
    "planfreeze.settings",
    "planfreeze.runs.recorded",  # makes the environment of a recorded command
    "planfreeze.replays",  # makes the environment of the process that proves the guard
    "planfreeze.runs.guarded",  # makes the environment of a guarded or served command
    "planfreeze.workers",  # makes the environment of compile processes
    "planfreeze.compilers.cute",  # checks what the DSL latched
    "planfreeze.compilers.dumps",  # the same of its folder of dumps
    "planfreeze.guard.children",  # announces armed guards to children, and takes that back
    "planfreeze.processes",  # makes the environment of the process that builds
    "planfreeze.compilers.recorded_cute",  # the same
}


def part_of(name: str) -> str:
    return name.split(".")[1]


@cache
def reaches_torch(name: str) -> bool:
    """Whether importing a module of planfreeze.kernels imports torch, by itself or through others of them."""
    imported = set(imports_of(name, top_level=True))
    kernels = {found for found in imported & read_modules().keys() if found.startswith("planfreeze.kernels")}
    return "torch" in imported or any(reaches_torch(found) for found in kernels)


KERNEL_MODULES = sorted(name for name in read_modules() if name.startswith("planfreeze.kernels"))
FAMILY_MODULES = [name for name in KERNEL_MODULES if "\n@family(" in read_modules()[name].read_text()]
TORCH_SIDE = [name for name in KERNEL_MODULES if reaches_torch(name)]
LIGHT = [name for name in KERNEL_MODULES if not is_kernel(name) and name not in TORCH_SIDE]


def test_both_linked_folders_are_found():
    assert {"planfreeze.cache.store", "planfreeze.kernels.moe.topk_sum", "planfreeze.builds"} <= read_modules().keys()
    assert len(FAMILY_MODULES) >= 4


def test_every_part_has_its_layer():
    assert {part_of(name) for name in FRAMEWORK} == set(LEVEL)


def test_imports_point_down():
    upward = [
        f"{name} imports {imported}"
        for name in FRAMEWORK
        for imported in imports_of(name)
        if imported.startswith("planfreeze.") and not imported.startswith("planfreeze.kernels")
        if LEVEL[part_of(imported)] > LEVEL[part_of(name)]
    ]
    assert upward == []


def test_imports_go_in_no_circle():
    graph = {name: {found for found in imports_of(name) if found in read_modules()} - {name} for name in read_modules()}
    for facade in FACADES:
        del graph[facade]
    while graph:
        leaves = {name for name, found in graph.items() if not found & graph.keys()}
        assert leaves, f"a circle in {sorted(graph)}"
        graph = {name: found for name, found in graph.items() if name not in leaves}


def test_errors_are_loaded_where_they_are_raised():
    for name in read_modules():
        taken = [node.module for node in parse(name).body if isinstance(node, ast.ImportFrom)]
        assert "planfreeze.errors" not in taken or part_of(name) == "errors", name


def test_framework_reaches_kernels_by_text_alone():
    reached = [
        f"{name} imports {imported}"
        for name in FRAMEWORK
        for imported in imports_of(name)
        if imported.startswith("planfreeze.kernels.")
    ]
    assert reached == []


def test_families_and_kernels_need_little_of_the_framework():
    for name in {*FAMILY_MODULES, *filter(is_kernel, KERNEL_MODULES)}:
        framework = {part_of(imported) for imported in imports_of(name) if imported.startswith("planfreeze.")}
        assert framework <= {"errors", "family", "payload", "target", "kernels"}, name


def test_light_modules_import_no_kernel():
    for name in LIGHT:
        kernels = [imported for imported in imports_of(name) if imported.endswith(("_cute", "_triton"))]
        assert kernels == [], name


def test_only_compilers_import_compilers():
    for name in FRAMEWORK:
        top = {imported.partition(".")[0] for imported in imports_of(name, top_level=True)}
        assert not top & set(COMPILERS) or name.startswith("planfreeze.compilers."), name


def test_a_module_with_a_kernel_beside_it_is_a_family():
    assert list(family_modules()) == FAMILY_MODULES


def test_families_are_not_on_the_side_of_torch():
    assert set(FAMILY_MODULES) <= set(LIGHT)


LOAD = """
import importlib, json, sys
heavy = {}
for name in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(name)
    loaded = {module.partition(".")[0] for module in set(sys.modules) - before}
    if found := loaded & {"torch", "triton", "cutlass", "cuda", "numpy"}:
        heavy[name] = sorted(found)
bare = sorted(name for name in sys.modules if name.partition(".")[0] in ("kernels", "cache"))
print(json.dumps({"heavy": heavy, "bare": bare, "count": sum(name.startswith("planfreeze") for name in sys.modules)}))
"""


@pytest.mark.parametrize("name", ["planfreeze", "planfreeze.cli", *FAMILY_MODULES])
def test_import_by_itself_loads_no_compiler_and_no_torch(interpreter, name):
    assert json.loads(interpreter.run(LOAD, name))["heavy"] == {}


def test_no_light_module_loads_a_compiler_or_torch_and_no_folder_is_a_package_of_its_own(interpreter):
    outside = ("planfreeze.compilers.", "planfreeze.kernels")
    light = [name for name in FRAMEWORK if not name.startswith(outside) and not name.endswith("__main__")]
    made = json.loads(interpreter.run(LOAD, "planfreeze", *light, *LIGHT))
    assert made["heavy"] == {}
    assert made["bare"] == []
    assert made["count"] > len(light)


def test_no_module_is_loaded_by_the_bare_name_of_its_folder(interpreter):
    made = json.loads(
        interpreter.run(LOAD, *TORCH_SIDE, *(name for name in KERNEL_MODULES if name.endswith("_triton")))
    )
    assert made["bare"] == [] and made["count"] > 0


def reads_environment(name: str) -> bool:
    """Whether a module reads the environment by any of the names it has in ``os``."""
    readers = {"environ", "environb", "getenv", "getenvb", "putenv"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in readers)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and readers & {alias.name for alias in node.names})
        for node in ast.walk(parse(name))
    )


def test_environment_is_read_in_few_places():
    assert set(filter(reads_environment, read_modules())) == ENVIRONMENT_READERS
