"""Compile a plan by the compilers' own APIs, one program after another in one process, called by budgets.

python tools/cpu_bench/serial_build.py MODEL TP
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cpu_bench.subject import Subject
from planfreeze.key import source_roots
from planfreeze.sources import read_sources
from planfreeze.workers import compile_definition


def main() -> None:
    """Compile every program; nothing is stored."""
    plan = Subject(model=sys.argv[1], tp=int(sys.argv[2])).plan
    for family, payload in plan.programs:
        definition = family.define(payload, plan.target)
        compile_definition(definition, plan.target, read_sources(source_roots(family, definition)))


if __name__ == "__main__":
    main()
