"""Keyed programs: what a build is about to make, each with its key and the text it stands for."""

from functools import cache
from pathlib import Path

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.digest import digest_of
from planfreeze.family import Definition, Family
from planfreeze.key import Key, dialect_of, make_key, source_roots
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.resolve import program_name
from planfreeze.sources import ModuleReader, Sources, hash_source, read_sources
from planfreeze.target import Target
from planfreeze.toolchain import Toolchain, find_toolchain

__all__ = ["KeyedProgram", "UnkeyedProgram", "key_plan"]


class KeyedProgram(Struct, frozen=True, kw_only=True):
    """A planned program with its key and the text it stands for."""

    family: Family
    payload: Payload
    definition: Definition
    target: Target
    sources: Sources
    key: Key

    @property
    def name(self) -> str:
        """The program as people read it."""
        return program_name(self.payload)


class UnkeyedProgram(Struct, frozen=True, kw_only=True):
    """A planned program that has no key, since its kernel's text cannot be read."""

    payload: Payload
    target: Target
    reason: str

    @property
    def name(self) -> str:
        """The program as people read it."""
        return program_name(self.payload)


def key_plan(plan: Plan, toolchains: Path) -> tuple[KeyedProgram | UnkeyedProgram, ...]:
    """Key every program of a plan, in planned order.

    Parameters
    ----------
    toolchains : Path
        Directory that remembers compiler fingerprints, and what the text of kernels imports.

    Raises
    ------
    CompilerMissing, ToolchainUnreadable
        A compiler whose fingerprint the keys need is not installed, or not whole.
    """
    installed: dict[str, Toolchain] = {}
    read: dict[tuple[str, ...], Sources] = {}
    reader = ModuleReader(toolchains / f"imports-{digest_of(plan.name.encode())}")
    hash_module = cache(hash_source)
    keyed: list[KeyedProgram | UnkeyedProgram] = []
    for family, payload in plan.programs:
        definition = family.define(payload, plan.target)
        dialect, roots = dialect_of(definition), source_roots(family, definition)
        if dialect not in installed:
            installed[dialect] = find_toolchain(dialect, toolchains)
        try:
            sources = read.setdefault(roots, read.get(roots) or read_sources(roots, reader))
        except (errors.SourceUnreadable, errors.UnparsableSource) as error:
            keyed.append(UnkeyedProgram(payload=payload, target=plan.target, reason=str(error)))
            continue
        keyed.append(
            KeyedProgram(
                family=family,
                payload=payload,
                definition=definition,
                target=plan.target,
                sources=sources,
                key=make_key(
                    family, payload, definition, plan.target, sources, installed[dialect], hash_module=hash_module
                ),
            )
        )
    reader.remember()
    return tuple(keyed)
