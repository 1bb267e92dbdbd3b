"""Toolchains: the compilers installed here, by name, version and content."""

import csv
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

import msgspec
from msgspec import Struct

from planfreeze import errors
from planfreeze.memory import recall, remember

__all__ = ["Toolchain", "find_toolchain", "host_compiler"]

# Each dialect's compiler, as distributions: the first must be there, the others belong to it when they are.
DISTRIBUTIONS = {
    "triton": ("triton",),
    "cute": (
        "nvidia-cutlass-dsl",
        "nvidia-cutlass-dsl-libs-core",
        "nvidia-cutlass-dsl-libs-base",
        "nvidia-cutlass-dsl-libs-cu12",
        "nvidia-cutlass-dsl-libs-cu13",
    ),
}
MODULES = {"triton": "triton", "cute": "cutlass"}


class Toolchain(Struct, frozen=True):
    """A compiler: its dialect, its version, and a sha256 over every file it consists of."""

    dialect: str
    version: str
    fingerprint: str


def find_toolchain(dialect: str, cache: Path) -> Toolchain:
    """Fingerprint the compiler of a dialect ("triton" or "cute").

    Parameters
    ----------
    dialect : str
        Which compiler.
    cache : Path
        Directory that remembers fingerprints. A remembered one is used while size, inode, mtime and ctime of
        every file are what they were; a change that keeps all four goes unseen.

    Raises
    ------
    CompilerMissing
        The compiler is not installed.
    ToolchainUnreadable
        It is, but its files are not listed, or others would be imported in their place.
    """
    first, *others = DISTRIBUTIONS[dialect]
    compiler = find_distribution(first)
    if compiler is None:
        raise errors.CompilerMissing(dialect, first)
    found = [compiler, *(other for name in others if (other := find_distribution(name)) is not None)]
    files = sorted(file for distribution in found for file in list_files(distribution))
    check_origin(first, MODULES[dialect], files)
    seen = hashlib.sha256(repr([(name, stat_of(path)) for name, path in files]).encode()).hexdigest()
    remembered = cache / f"{dialect}-{seen}"
    fingerprint = recall(remembered)
    if fingerprint is None:
        fingerprint = hash_files(files)
        remember(remembered, fingerprint)
    versions = "+".join(dict.fromkeys(distribution.version for distribution in found))
    return Toolchain(dialect, versions, fingerprint)


def find_distribution(name: str) -> metadata.Distribution | None:
    """Return an installed distribution, or None."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def host_compiler() -> str:
    """Return what C modules for this interpreter would be built with: compiler, linker, C library and headers."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    tools = [tool for tool in (shutil.which("gcc") or shutil.which("clang"), shutil.which("ld")) if tool]
    asked = [
        subprocess.run([tool, "--version"], env={"LC_ALL": "C"}, capture_output=True, text=True, check=False).stdout
        for tool in tools
    ]
    facts = (*(text.partition("\n")[0] for text in asked), *platform.libc_ver(), sys.version, headers.exists())
    return "; ".join(map(str, facts))


def list_files(distribution: metadata.Distribution) -> list[tuple[str, str]]:
    """Return name and path of every file that belongs to a distribution's content."""
    name = distribution.name  # read from its metadata each time it is asked for
    record = distribution.read_text("RECORD")
    if record is None:
        raise errors.ToolchainUnreadable(name, "has no list of its files (RECORD)")
    # Read here: importlib.metadata makes objects of every line, which took a tenth of a build that finds everything.
    files = (row[0] for row in csv.reader(record.splitlines()) if row)
    root = str(distribution.locate_file(""))
    return [(f"{name}/{file}", f"{root}/{file}") for file in files if is_content(file)]


def check_origin(distribution: str, module: str, files: list[tuple[str, str]]) -> None:
    """Refuse a compiler that is imported from elsewhere: a checkout on the search path, an editable install."""
    spec = PathFinder.find_spec(module)
    origin = None if spec is None or spec.origin is None else os.path.realpath(spec.origin)
    listed = [os.path.realpath(path) for name, path in files if name.endswith(f"/{module}/__init__.py")]
    if origin not in listed:
        raise errors.ToolchainUnreadable(
            distribution, f"{module} is imported from {origin}, which is none of its files"
        )


def is_content(file: str) -> bool:
    """Tell whether an installed file is part of the compiler, not a trace of its installation.

    Launchers of commands, outside of the site directory, hold the path of the environment.
    """
    traces = (".pyc", "/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json")
    return not file.startswith("../") and not file.endswith(traces)


def stat_of(path: str) -> tuple[int, int, int, int] | None:
    """Return what changes when a file does, or None when it is gone."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of files on the path of every build
    except OSError:
        return None
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def hash_files(files: list[tuple[str, str]]) -> str:
    """Hash names and contents; a file listed but gone counts by its name alone."""
    parts = []
    for name, path in files:
        try:
            with Path(path).open("rb") as file:
                parts.append((name, hashlib.file_digest(file, "sha256").hexdigest()))
        except FileNotFoundError:
            parts.append((name, ""))
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
