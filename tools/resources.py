"""Write what the programs of frozen plans take of an SM, read from their cubins; needs no GPU.

python tools/resources.py STORE PLAN... -o docs/resources.md. STORE holds the plans, such as ds41-tp4-sm_90a. Variants
that read scales from native planes and inline stand side by side. The exit status is 1 where a program uses local
memory.
"""

import argparse
import math
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from planfreeze.cache.store import Store
from planfreeze.occupancy import count_blocks
from planfreeze.record import ProgramRecord
from planfreeze.resolve import PlanReference, ResolvedProgram, find_plan, resolve_plan
from planfreeze.target import Target

HEAD = """# Resources

What programs take of an SM, read from their cubins by `tools/resources.py`; no GPU was asked. Built with Triton
{triton} and nvidia-cutlass-dsl {cutlass}. Where a family reads scales, the first figure is the variant over native
planes and the second the one that reads them inline. Shared bytes are those of a block, with the 1024 that the system
reserves; blocks are those that registers, shared memory and threads leave room for on one SM. No program uses local
memory: nothing is spilled.
"""


class Resources(Struct, frozen=True, kw_only=True):
    """What one program takes.

    Parameters
    ----------
    registers : int
        Registers of a thread.
    stack_bytes : int
        Local memory of a thread.
    shared_bytes : int
        Shared memory of a block, dynamic, static and reserved.
    blocks : int
        Blocks that fit an SM.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    blocks: int


def read_resources(record: ProgramRecord, target: Target) -> Resources:
    """Return what a program takes, as its record says that its cubin says."""
    shared_bytes = record.launch.shared_bytes + record.static_shared_bytes
    return Resources(
        registers=record.registers,
        stack_bytes=record.stack_bytes,
        shared_bytes=shared_bytes,
        blocks=count_blocks(
            registers=record.registers,
            shared_bytes=shared_bytes,
            threads=math.prod(record.launch.block),
            target=target,
        ),
    )


def resolve(store: Store, names: Iterable[str]) -> tuple[ResolvedProgram, ...]:
    """Return every program of the plans of these names."""
    return tuple(
        program
        for name in names
        for program in resolve_plan(find_plan(store, PlanReference.parse(name)), store).check()
    )


def describe(program: ResolvedProgram) -> str:
    """Write the fields of a payload that have no default value, but for how scales are read."""
    payload = program.planned.payload
    fields = payload.to_fields()
    stated = (f"{name}={value}" for name, value in fields.items() if name != "csf_inline" and value not in (False, ""))
    return ", ".join(stated)


def make_tables(programs: Iterable[ResolvedProgram]) -> str:
    """Return one table per architecture, variants in the order of the plans."""
    rows: dict[str, dict[tuple[str, str], dict[bool, Resources]]] = {}
    for program in programs:
        payload, target = program.planned.payload, program.planned.target
        row = rows.setdefault(target.arch, {}).setdefault((payload.family_name, describe(program)), {})
        row[payload.to_fields().get("csf_inline") is True] = read_resources(program.record, target)
    parts = []
    for arch, variants in rows.items():
        lines = ["| family | variant | registers | shared bytes | blocks per SM |", "|---|---|---|---|---|"]
        for (family, variant), found in variants.items():
            both = [found[is_inline] for is_inline in (False, True) if is_inline in found]
            figures = (
                " / ".join(f"{getattr(one, name):,}" for one in both)
                for name in ("registers", "shared_bytes", "blocks")
            )
            lines.append(f"| `{family}` | {variant} | {' | '.join(figures)} |")
        parts.append(f"## {arch}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def write_document(programs: Iterable[ResolvedProgram]) -> str:
    """Return the whole document."""
    head = HEAD.format(triton=metadata.version("triton"), cutlass=metadata.version("nvidia-cutlass-dsl"))
    return f"{head}\n{make_tables(programs)}"


def main() -> None:
    """Write the document of the plans that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("plans", nargs="+", metavar="PLAN")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    programs = resolve(Store.open(arguments.store, is_trusted=True), arguments.plans)
    text = write_document(programs)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        sys.stdout.write(text)
    spilled = [program.name for program in programs if program.record.stack_bytes]
    for name in spilled:
        sys.stderr.write(f"{name} uses local memory\n")
    sys.exit(bool(spilled))


if __name__ == "__main__":
    main()
