"""Builds: missing programs are compiled once, published one by one, and frozen when all are there."""

import importlib
import itertools
import json
import shutil
import subprocess
import time

import pytest
from msgspec.structs import replace

from planfreeze.cache.store import Store
from planfreeze.elf import read_cubin
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.keyed import key_plan
from planfreeze.record import ProgramRecord
from planfreeze.slots import build_programs

from .conftest import BUILD, ROOT, list_names, statuses


def test_build_publishes_programs_and_freezes_the_plan(built):
    (frozen,) = built.report.plans
    assert built.store.get_ref("toys-tp1-sm_90a") == frozen.root
    assert FrozenPlan.decode(built.store.get_plan(frozen.root)) == frozen
    assert [dict(entry.fields) for entry in frozen.entries] == [{"block": 64, "warps": 1}, {"mode": "plain"}]
    assert [entry.family for entry in frozen.entries] == ["toys.families:add", "toys.families:copy"]
    for entry, outcome in zip(frozen.entries, built.report.outcomes, strict=True):
        record = ProgramRecord.decode(built.store.get_record(entry.key, entry.record))
        cubin = built.store.get_blob(entry.blob)
        assert record == outcome.record and record.blob == entry.blob
        assert outcome.size_bytes == len(cubin) and outcome.seconds > 0
        assert read_cubin(cubin).kernels[0].symbol == record.symbol
    assert len(list_names(built.store, "blob")) == len(list_names(built.store, "record")) == 2


def test_frozen_plan_names_the_text_of_every_family(built):
    (frozen,) = built.report.plans
    texts = {family.reference: [name for name, _ in family.sources.modules] for family in frozen.families}
    assert texts["toys.families:add"] == ["toys", "toys.add_triton", "toys.families", "toys.shared"]
    assert texts["toys.families:copy"] == [
        *("planfreeze.kernels.mma", "planfreeze.kernels.mma.memory", "planfreeze.kernels.mma.ptx"),
        *("toys", "toys.copy_cute", "toys.families", "toys.mischief"),
    ]


def test_second_build_compiles_nothing_and_imports_no_compiler(built, interpreter, toolchains, tmp_path):
    store = built.copy(tmp_path / "store")
    files = {path: path.stat().st_mtime_ns for path in store.path.rglob("*") if path.is_file()}
    script = (
        BUILD + "print(json.dumps(summary(build(sys.argv[1], (AddPayload(block=64), CopyPayload()), sys.argv[2]))))"
    )
    made = json.loads(interpreter.run(script, str(store.path), str(toolchains)))
    assert list(made["status"].values()) == ["reused", "reused"]
    assert made["roots"] == [built.report.plans[0].root]
    assert made["compilers"] == []
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*") if path.is_file()} == files


def test_first_build_imports_no_compiler_into_the_builder_either(interpreter, toolchains, tmp_path):
    script = BUILD + "print(json.dumps(summary(build(sys.argv[1], (AddPayload(block=64),), sys.argv[2]))))"
    made = json.loads(interpreter.run(script, str(tmp_path / "store"), str(toolchains)))
    assert list(made["status"].values()) == ["compiled"] and made["compilers"] == []


def test_every_outcome_is_told_as_it_comes_stored_ones_first(built, build, toys, tmp_path):
    store, told = built.copy(tmp_path / "store"), []
    payloads = (toys.families.AddPayload(block=32), *built.plan.payloads)
    report = build(store, toys.plan(*payloads), on_outcome=told.append)
    assert [outcome.status for outcome in told] == ["reused", "reused", "compiled"]
    assert [outcome.program.payload for outcome in report.outcomes] == list(payloads)
    assert (report.count("compiled"), report.count("reused"), report.count("failed")) == (1, 2, 0)


def test_plans_for_two_archs_are_built_and_frozen_together(build, toys, empty):
    payloads = (toys.families.AddPayload(block=64), toys.families.CopyPayload())
    report = build(empty, toys.plan(*payloads), toys.plan(*payloads, arch="sm_120a"), jobs=2)
    assert statuses(report) == ["compiled"] * 4
    assert list(empty.list_refs()) == ["toys-tp1-sm_120a", "toys-tp1-sm_90a"]
    for outcome in report.outcomes:
        assert (
            read_cubin(empty.get_blob(outcome.record.blob)).arch == outcome.program.target.arch == outcome.record.arch
        )


def test_program_of_two_plans_is_compiled_once(build, toys, empty):
    add = toys.families.AddPayload(block=64)
    report = build(empty, toys.plan(add), toys.plan(add, model="twins"))
    assert statuses(report) == ["compiled"]
    assert [plan.name for plan in report.plans] == ["toys-tp1-sm_90a", "twins-tp1-sm_90a"]


def test_two_keys_with_one_result_share_its_blob(build, toys, empty, make_package):
    make_package("twin", add_triton=(toys.folder / "toys" / "add_triton.py").read_text() + "# a comment\n")
    from twin.families import AddPayload

    report = build(empty, toys.plan(toys.families.AddPayload(block=64), AddPayload(block=64)))
    assert len(list_names(empty, "record")) == 2 and len(list_names(empty, "blob")) == 1
    assert len({outcome.record.blob for outcome in report.outcomes}) == 1


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("raise", "ArithmeticError: this kernel has no solution"), ("kill", "ended with signal 9")],
)
def test_program_that_fails_is_named_with_its_log_and_costs_no_other(build, toys, empty, mode, reason):
    add, copy = toys.families.AddPayload, toys.families.CopyPayload
    payloads = (add(block=32), copy(mode=mode), add(block=64), copy())
    report = build(empty, toys.plan(*payloads), toys.plan(add(block=32), model="whole"))
    assert statuses(report) == ["compiled", "failed", "compiled", "compiled"]
    failed = report.outcomes[1]
    assert failed.program.name == f"toys_copy(mode={mode})" and reason in failed.reason and failed.record is None
    assert len(list_names(empty, "record")) == len(list_names(empty, "blob")) == 3
    assert [plan.name for plan in report.plans] == ["whole-tp1-sm_90a"]
    assert list(empty.list_refs()) == ["whole-tp1-sm_90a"], "no plan claims to be complete"


@pytest.mark.parametrize(("text", "reason"), [("def f(:", "cannot be parsed"), (None, "has no Python source file")])
def test_program_whose_text_cannot_be_read_is_named_and_costs_no_other(build, toys, empty, make_package, text, reason):
    package = make_package("unread" if text is None else "garbled")
    families = importlib.import_module(f"{package.name}.families")
    kernel = package / "add_triton.py"
    kernel.unlink() if text is None else kernel.write_text(text)
    told = []
    plan = toys.plan(families.AddPayload(block=64), toys.families.AddPayload(block=64))
    report = build(empty, plan, on_outcome=told.append)
    assert sorted(statuses(report)) == ["compiled", "failed"] and len(told) == 2
    (failed,) = (outcome for outcome in report.outcomes if outcome.status == "failed")
    assert failed.program.payload == plan.payloads[0] and not hasattr(failed.program, "key")
    assert f"module {package.name}.add_triton" in failed.reason and reason in failed.reason
    assert report.plans == () and empty.list_refs() == {}


def test_note_says_where_a_program_comes_from(built):
    for outcome in built.report.outcomes:
        note = json.loads(built.store.get_note(outcome.program.key.digest))
        assert note["program"] == outcome.program.name and note["arch"] == "sm_90a"
        assert note["toolchain"].split()[0] in ("triton", "cute") and note["seconds"] > 0


def test_note_says_in_which_build_when_and_in_which_slot_a_program_was_compiled(build, toys, empty):
    add, before = toys.families.AddPayload, time.time()
    build(empty, toys.plan(add(block=16), add(block=32), add(block=64)), jobs=2)
    names = set(list_names(empty, "note"))
    first = [json.loads(empty.get_note(name)) for name in names]
    build(empty, toys.plan(add(block=16), add(block=128)))
    (last,) = (json.loads(empty.get_note(name)) for name in list_names(empty, "note") if name not in names)
    assert {note["slot"] for note in first} == {0, 1} and last["slot"] == 0
    assert len({note["build"] for note in first}) == 1 and last["build"] != first[0]["build"]
    spans = sorted((note["slot"], note["started_s"], note["started_s"] + note["seconds"]) for note in (*first, last))
    assert all(before - 0.01 <= began <= ended <= time.time() + 0.01 for _, began, ended in spans)
    pairs = [(early, late) for early, late in itertools.pairwise(spans) if early[0] == late[0]]
    assert pairs and all(late[1] >= early[2] - 0.01 for early, late in pairs), "a slot compiles one at a time"


def test_text_edited_after_it_was_keyed_publishes_nothing(toys, empty, toolchains, make_package):
    package = make_package("moving")
    from moving.families import AddPayload

    keyed = key_plan(toys.plan(AddPayload(block=64)), toolchains)
    (package / "add_triton.py").write_text((package / "add_triton.py").read_text().replace("+ STEP", "- STEP"))
    (outcome,) = build_programs(list(keyed), empty, 1)
    assert outcome.status == "failed"
    assert "module moving.add_triton" in outcome.reason and "no longer the text" in outcome.reason
    assert list_names(empty, "record") == list_names(empty, "blob") == []
    (again,) = build_programs(list(key_plan(toys.plan(AddPayload(block=64)), toolchains)), empty, 1)
    assert again.status == "compiled" and again.program.key.digest != keyed[0].key.digest


def test_store_that_cannot_be_written_ends_the_build(built, build):
    reader = Store.open(built.store.path)
    with pytest.raises(Exception, match="it was opened for reading"):
        build(reader, replace(built.plan, payloads=(type(built.plan.payloads[0])(block=256),)))


def test_one_compile_process_is_the_least(build, toys, empty):
    assert statuses(build(empty, toys.plan(toys.families.AddPayload(block=64)), jobs=0)) == ["compiled"]


CHECKOUT = """
import json, sys
from pathlib import Path
import planfreeze
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.plans import Plan
from planfreeze.target import target
payloads = (
    TopkSumPayload(hidden=256, top_k=2),
    ExpandPayload(experts=2, rows=256, columns=8, group_rows=128),
)
plan = Plan(model="checkout", tp=1, target=target("sm_90a"), payloads=payloads)
report = build_plans([plan], Store.open(sys.argv[1], writable=True), jobs=1, toolchains=Path(sys.argv[2]))
assert report.count("compiled") == 2, report
print(json.dumps({"file": planfreeze.__file__, "roots": [made.root for made in report.plans]}))
"""


def test_two_checkouts_at_different_paths_build_the_same_plan(interpreter, toolchains, tmp_path):
    roots = []
    for place in (tmp_path / "a", tmp_path / "another" / "place" / "of-a-longer-name"):
        for name in ("planfreeze", "kernels", "cache"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=ignored)
        made = json.loads(replace(interpreter, folders=(place,)).run(CHECKOUT, str(place / "store"), str(toolchains)))
        assert made["file"] == str(place / "planfreeze" / "__init__.py")
        roots.append(made["roots"])
    assert roots[0] == roots[1] and len(roots[0]) == 1


@pytest.mark.parametrize("name", ["python3.12", "python3.13"])
def test_other_python_versions_build_the_same_blobs(built, interpreter, tmp_path, name):
    toolchain = dict(built.keyed[0].key.parts)["toolchain"].decode()
    executable = shutil.which(name) or name
    probe = [executable, "-c", "import cutlass, msgspec, triton; print(triton.__version__)"]
    try:
        version = subprocess.run(probe, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no {name} with the compilers is on the path")
    if f"triton {version} " not in toolchain:
        pytest.skip(f"{name} has Triton {version}, this is {toolchain}")
    script = BUILD + (
        "report = build(sys.argv[1], (AddPayload(block=64), CopyPayload()), sys.argv[1])\n"
        "print(json.dumps(summary(report)))"
    )
    made = json.loads(interpreter.run(script, str(tmp_path / "store"), executable=executable))
    assert list(made["status"].values()) == ["compiled", "compiled"]
    assert made["blobs"] == [outcome.record.blob for outcome in built.report.outcomes]
