"""Wheels: they hold the extension where there is a C compiler, and everything else where there is none."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
EXTENSION = "planfreeze/_tensors.abi3.so"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of the package as it lies in a source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("planfreeze", "kernels", "cache"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignored)
    build(checkout, "build_sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def build(folder: Path, what: str, target: Path, **environment: str) -> str:
    """Build as pip does, without an index; return what was said."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(target)],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def build_wheel(source: Path, tmp_path: Path, **environment: str) -> tuple[Path, set[str], str]:
    """Build a wheel of a copy; return it, the names of its files, and what was said."""
    shutil.copytree(source, tmp_path / "source")
    said = build(tmp_path / "source", "build_wheel", tmp_path, **environment)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        return wheel, set(opened.namelist()), said


def test_a_source_distribution_holds_all_c(source: Path) -> None:
    written = {path.name for path in (ROOT / "planfreeze").glob("*.[ch]")}
    assert len(written) == 3
    assert {path.name for path in (source / "planfreeze").glob("*.[ch]")} == written


def test_a_wheel_holds_the_extension_for_this_and_later_versions_of_python_and_no_c(
    source: Path, tmp_path: Path
) -> None:
    wheel, names, _ = build_wheel(source, tmp_path, CFLAGS="-Werror")
    assert "-cp311-abi3-linux_" in wheel.name
    assert {EXTENSION, "planfreeze/_tensors.pyi", "planfreeze/py.typed"} <= names
    assert not [name for name in names if name.endswith((".c", ".h", ".o"))]
    with zipfile.ZipFile(wheel) as opened:
        opened.extract(EXTENSION, tmp_path)
    look = "import _tensors; print(_tensors.TensorCheck)"
    folder = str(tmp_path / "planfreeze")
    done = subprocess.run([sys.executable, "-c", look], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "<class 'planfreeze._tensors.TensorCheck'>\n", done.stderr


def test_the_extension_needs_nothing_but_the_stable_abi_of_python_and_libc(source: Path, tmp_path: Path) -> None:
    wheel, _, _ = build_wheel(source, tmp_path)
    with zipfile.ZipFile(wheel) as opened:
        opened.extract(EXTENSION, tmp_path)
    needed = subprocess.run(["readelf", "-d", tmp_path / EXTENSION], capture_output=True, text=True, check=True).stdout
    libraries = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line}
    assert libraries <= {"libc.so.6", "libpthread.so.0"}


def test_without_a_c_compiler_a_wheel_holds_all_but_the_extension(source: Path, tmp_path: Path) -> None:
    _, whole, _ = build_wheel(source, tmp_path / "with")
    _, names, said = build_wheel(source, tmp_path / "without", CC="/nowhere/cc")
    assert 'building extension "planfreeze._tensors" failed' in said
    assert whole - names == {EXTENSION} and names - whole == set()
