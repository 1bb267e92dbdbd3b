"""Notes: where a program came from, kept beside its record. Nothing proves a note and nothing depends on one."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict

from planfreeze.cache.readable import ReadableStore
from planfreeze.cache.store import Store

__all__ = ["Note", "Spills", "find_spills", "read_note", "select_assembler_lines"]

# Blackwell's assembler, which Triton 3.9 takes for every architecture, names itself ptxas-blackwell.
# The CuTe DSL 4.8 indents what it passes on, and begins each line with "ptxas".
ASSEMBLER_LINE = re.compile(r"^[ \t]*((?:ptxas[\w-]* +(?:info|warning|\.) |\d+ bytes ).*)$", re.MULTILINE)
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class Spills(Struct, frozen=True):
    """Bytes that a thread stores to and loads from local memory since it has too few registers."""

    store_bytes: int
    load_bytes: int


class Note(Struct, frozen=True, kw_only=True):
    """Provenance of a program. What an older version did not write down, or a damaged note, is empty.

    Parameters
    ----------
    program : str
        The program as people read it.
    dialect, toolchain, python : str
        What it was compiled by: dialect; name, version and fingerprint of the compiler; version of Python.
    environment : mapping of str to str
        Pinned variables of the compile.
    labels : mapping of str to str
        Every part of its key, short text as it is and anything else as a sha256.
    started_s, seconds : float
        When the compile began, in Unix time, and how long it took.
    worker : int
        Number of the process that compiled it.
    build : str
        A token of the build that made it.
    slot : int
        Which of the processes of that build at a time, counted from 0.
    log : str
        What the assembler said of it.
    """

    program: str = ""
    arch: str = ""
    dialect: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    toolchain: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    started_s: float = 0.0
    seconds: float = 0.0
    worker: int = 0
    build: str = ""
    slot: int = 0
    python: str = ""
    log: str = ""

    def encode(self) -> bytes:
        """Return the note as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> "Note":
        """Read a note; a part that is not there or of another type stays empty."""
        try:
            told = json.loads(data or b"{}")
        except ValueError:
            told = {}
        known = {name: value for name, value in told.items() if name in KINDS} if isinstance(told, dict) else {}
        return cls(**{name: value for name, value in known.items() if KINDS[name](value)})


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_text, value.values()))


KINDS = {
    **dict.fromkeys(("program", "arch", "dialect", "toolchain", "python", "build", "log"), is_text),
    **dict.fromkeys(("environment", "labels"), are_texts),
    **dict.fromkeys(("started_s", "seconds", "worker", "slot"), is_number),
}


def read_note(key: str, store: ReadableStore) -> Note:
    """Return what is told of a key; a pack holds no notes."""
    return Note.decode(store.get_note(key)) if isinstance(store, Store) else Note()


def select_assembler_lines(output: str) -> str:
    """Return what ptxas said of a program, out of all that a compile process printed."""
    return "\n".join(line.rstrip() for line in ASSEMBLER_LINE.findall(output))


def find_spills(log: str) -> Spills | None:
    """Return the spills of a program and of what it calls, by its assembler's log; None where it does not say."""
    found = SPILLS.findall(log)
    if not found:
        return None
    return Spills(sum(int(stores) for stores, _ in found), sum(int(loads) for _, loads in found))
