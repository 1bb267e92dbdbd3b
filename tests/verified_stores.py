"""What verifying a store finds, and damage to be found."""

from pathlib import Path

from planfreeze.verification import verify

NAME = "toys-tp1-sm_90a"


def facts(store, plan=None):
    """Problems as (kind, name, state)."""
    return [(problem.kind, problem.name, problem.state) for problem in verify(store, plan).problems]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x80
    path.write_bytes(data)
