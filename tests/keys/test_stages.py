"""Every stage of every program, made in fresh processes, with other hash seeds, elsewhere, a line further down."""

import json
import shutil
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from planfreeze.cache.digest import digest_of
from planfreeze.resolve import resolve_plan

# Compiles as a worker does, and prints the digest of each stage by program.
SCRIPT = """
import json, os, sys, types
from pathlib import Path
from planfreeze.cache.digest import digest_of
from planfreeze.family import family_of
from planfreeze.key import COMPILE_OPTIONS, source_roots
from planfreeze.sources import load_exactly, read_sources
from planfreeze.target import target
from planfreeze.workers import compile_definition
from toys.families import AddPayload, CopyPayload

COMPILE_OPTIONS["cute"] += " --keep-ptx"
stages = {}

def keep(found):
    for name, content in found.items():
        stages[current][name] = digest_of(content if isinstance(content, bytes) else str(content).encode())

def watch(owner, read):
    compile = owner.compile
    def kept(*arguments, **options):
        compiled = compile(*arguments, **options)
        keep(read(compiled))
        return compiled
    return kept

import triton
triton.compile = watch(triton, lambda compiled: {name: compiled.asm[name] for name in compiled.asm})
from planfreeze.compilers import cute as driver

def read_cute(compiled):
    (module,) = Path(os.environ["CUTE_DSL_DUMP_DIR"]).glob("*.mlir")
    return {"mlir": module.read_text(), "ptx": compiled.artifacts.PTX, "cubin": bytes(compiled.artifacts.CUBIN)}

driver.cute = types.SimpleNamespace(compile=watch(driver.cute, read_cute))
for payload in (AddPayload(block=64), AddPayload(block=32, warps=2), CopyPayload()):
    current = repr(payload.to_fields())
    stages[current] = {}
    family = family_of(payload)
    definition = family.define(payload, target("sm_90a"))
    sources = read_sources(source_roots(family, definition))
    made = compile_definition(definition, target("sm_90a"), sources)
    keep({"stored": made.cubin})
print(json.dumps(stages))
"""
CUTE = "{'mode': 'plain'}"
STAGES = {
    "triton": {"source", "ttir", "ttgir", "llir", "ptx", "cubin", "stored"},
    "cute": {"mlir", "ptx", "cubin", "stored"},
}


def make_stages(interpreter: Any, place: Path, **variables: str) -> dict[str, dict[str, str]]:
    """Compile everything in a fresh process; the digest of each stage by program."""
    dumps = place / "dumps"
    dumps.mkdir(parents=True)
    environment = {
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_KEEP": "ir",
        "CUTE_DSL_DUMP_DIR": str(dumps),
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    found: dict[str, dict[str, str]] = json.loads(interpreter.run(SCRIPT, **environment, **variables))
    return found


def differing(first: dict[str, dict[str, str]], second: dict[str, dict[str, str]]) -> set[str]:
    """Return the stages that differ in any program, by dialect."""
    assert first.keys() == second.keys()
    return {
        f"{'cute' if 'mlir' in first[name] else 'triton'} {stage}"
        for name in first
        for stage in first[name].keys() | second[name].keys()
        if first[name].get(stage) != second[name].get(stage)
    }


def test_no_stage_of_a_program_differs_between_processes_and_what_is_pinned_is_the_last(
    interpreter: Any, tmp_path: Path, toys: Any, built: Any
) -> None:
    first = make_stages(interpreter, tmp_path / "first", PYTHONHASHSEED="1")
    second = make_stages(interpreter, tmp_path / "second", PYTHONHASHSEED="2")
    assert {name: set(stages) for name, stages in first.items()} == {
        name: STAGES["cute" if "mode" in name else "triton"] for name in first
    }
    assert differing(first, second) == set()
    wide, narrow, _ = first.values()
    assert not set(wide.values()) & set(narrow.values()), "the stages are not those of each program"

    shutil.copytree(toys.folder, tmp_path / "elsewhere")
    for kernel in ("add_triton", "copy_cute"):
        path = tmp_path / "elsewhere" / "toys" / f"{kernel}.py"
        path.write_text(f"# A comment.\n{path.read_text()}")
    moved = replace(interpreter, folders=(tmp_path / "elsewhere", *interpreter.folders))
    assert differing(first, make_stages(moved, tmp_path / "third")) == set()

    (frozen,) = built.report.plans
    assert [entry.blob for entry in frozen.entries] == [wide["stored"], first[CUTE]["stored"]]
    assert [wide["cubin"], first[CUTE]["cubin"]] == [wide["stored"], first[CUTE]["stored"]]
    for program, entry in zip(resolve_plan(frozen, built.store).check(), frozen.entries, strict=True):
        assert digest_of(program.cubin) == entry.blob
