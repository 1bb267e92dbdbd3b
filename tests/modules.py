"""The modules of the project, and what they import."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "planfreeze": ROOT / "planfreeze",
    "planfreeze.kernels": ROOT / "kernels",
    "planfreeze.cache": ROOT / "cache",
}


@cache
def read_modules() -> dict[str, Path]:
    """Every module of the project, by import name; of one in C, its stub."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (*folder.rglob("*.py"), *folder.rglob("*.pyi")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            found[name] = path
    return found


@cache
def parse(name: str) -> ast.Module:
    return ast.parse(read_modules()[name].read_text())


def imports_of(name: str, *, top_level: bool = False) -> Iterator[str]:
    """Every module that an import statement of a module names; of a name in a package, the module if it is one."""
    tree = parse(name)
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in read_modules() else node.module


def is_kernel(name: str) -> bool:
    """Whether a module of planfreeze.kernels belongs to kernel text, which only a compile worker imports."""
    return name.endswith(("_cute", "_triton")) or name.startswith("planfreeze.kernels.mma")


# The package itself hands out public names of any layer, at their first use.
FACADES = {"planfreeze", "planfreeze.__main__"}
FRAMEWORK = sorted(name for name in read_modules() if not name.startswith("planfreeze.kernels") and name not in FACADES)
