"""The installed compilers, laid out again with one byte changed: keys of a real plan differ, version and time kept."""

import importlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from planfreeze import toolchain
from planfreeze.key import differing_labels
from planfreeze.keyed import key_plan

# Dialect, and the end of the name of a file that makes or assembles code for it.
PARTS = {
    "triton's library": ("triton", "triton/_C/libtriton.so"),
    "triton's assembler": ("triton", "triton/backends/nvidia/bin/ptxas"),
    "triton's assembler for later architectures": ("triton", "triton/backends/nvidia/bin/ptxas-blackwell"),
    "triton's bitcode of device functions": ("triton", "triton/backends/nvidia/lib/libdevice.10.bc"),
    "a Python file of triton": ("triton", "triton/backends/nvidia/compiler.py"),
    "the dsl's library, which holds its assembler": ("cute", "-linux-gnu.so"),
    "the dsl's runtime": ("cute", "lib/libcute_dsl_runtime.so"),
    "a Python file of the dsl": ("cute", "cutlass/base_dsl/compiler.py"),
}


@dataclass(frozen=True)
class Overlay:
    """A site directory whose files are links to those of the installed compilers."""

    site: Path

    def find(self, end):
        """Return the largest file whose name ends so."""
        return max((path for path in self.site.rglob("*") if str(path).endswith(end)), key=lambda p: p.stat().st_size)

    def copy(self, path, change=lambda data: None):
        """Put a changed copy of the same size, version and modification time in place of a link."""
        origin = path.resolve()
        path.unlink()
        shutil.copyfile(origin, path)
        with path.open("r+b") as file:
            change(file)
        status = origin.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return origin


@pytest.fixture(scope="module")
def overlay(tmp_path_factory):
    """The compilers of this environment in another place, before the others on the search path."""
    site = tmp_path_factory.mktemp("overlay") / "site-packages"
    for name in (name for names in toolchain.DISTRIBUTIONS.values() for name in names):
        distribution = toolchain.find_distribution(name)
        for file in (distribution.files or ()) if distribution is not None else ():
            if not str(file).startswith("../") and not str(file).endswith(".pyc"):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                (site / file).symlink_to(Path(file.locate()).resolve())
    packages = next(path.parent for path in site.rglob("cutlass/__init__.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(packages.parent))
        patch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        yield Overlay(site)


def flip_in_the_middle(file):
    """Change one byte."""
    file.seek(0, os.SEEK_END)
    file.seek(file.tell() // 2)
    byte = file.read(1)
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte[0] ^ 1]))


def test_the_same_compilers_in_another_place_give_the_same_keys(overlay, built, tmp_path):
    assert [program.key for program in key_plan(built.plan, tmp_path)] == [program.key for program in built.keyed]


@pytest.mark.parametrize("part", PARTS)
def test_one_changed_byte_in(overlay, built, toolchains, part):
    dialect, end = PARTS[part]
    path = overlay.find(end)
    origin = overlay.copy(path, flip_in_the_middle)
    try:
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (origin.stat().st_size, origin.stat().st_mtime_ns)
        keyed = key_plan(built.plan, toolchains)
    finally:
        path.unlink()
        path.symlink_to(origin)
    differing = {
        program.name.partition("(")[0]: differing_labels(before.key, program.key)
        for before, program in zip(built.keyed, keyed, strict=True)
    }
    changed = "toys_add" if dialect == "triton" else "toys_copy"
    assert differing == {"toys_add": (), "toys_copy": (), changed: ("toolchain",)}
    for before, program in zip(built.keyed, keyed, strict=True):
        versions = [dict(key.parts)["toolchain"].split()[:2] for key in (before.key, program.key)]
        assert versions[0] == versions[1]


def test_another_modification_time_alone_gives_the_same_keys(overlay, built, toolchains):
    for end in ("triton/backends/nvidia/compiler.py", "cutlass/base_dsl/compiler.py"):
        path = overlay.find(end)
        overlay.copy(path)
        os.utime(path, (1, 1))
    assert [program.key for program in key_plan(built.plan, toolchains)] == [program.key for program in built.keyed]
