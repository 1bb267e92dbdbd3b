"""Toolchains: the compilers installed here, by name, version and content."""

import hashlib
import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgpack

from planfreeze.errors import CompilerMissing

__all__ = ["Toolchain", "find_toolchain"]

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


@dataclass(frozen=True, slots=True)
class Toolchain:
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
    """
    found = [found for name in DISTRIBUTIONS[dialect] if (found := find_distribution(name)) is not None]
    if not found or found[0].name.lower() != DISTRIBUTIONS[dialect][0]:
        raise CompilerMissing(dialect, DISTRIBUTIONS[dialect][0])
    files = sorted(
        (f"{distribution.name}/{file}", str(distribution.locate_file(file)))
        for distribution in found
        for file in distribution.files or ()
        if is_content(str(file))
    )
    seen = hashlib.sha256(repr([(name, stat_of(path)) for name, path in files]).encode()).hexdigest()
    remembered = cache / f"{dialect}-{seen}"
    fingerprint = read_text(remembered)
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


def is_content(file: str) -> bool:
    """Tell whether an installed file is part of the compiler, not a trace of its installation."""
    return not file.endswith((".pyc", "/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json"))


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
    return hashlib.sha256(msgpack.packb(parts)).hexdigest()


def read_text(path: Path) -> str | None:
    """Return a remembered fingerprint, or None when there is no whole one."""
    try:
        text = path.read_text()
    except OSError:
        return None
    return text if len(text) == 64 else None


def remember(path: Path, fingerprint: str) -> None:
    """Keep a fingerprint; a directory that cannot be written only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(fingerprint)
        partial.replace(path)
    except OSError:
        return
