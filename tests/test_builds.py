"""Builds: missing programs are compiled once, published one by one, and frozen when all are there."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from planfreeze import slots
from planfreeze.builds import build_plans
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.elf import read_cubin
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.keyed import key_plan
from planfreeze.progress import describe_wait, print_outcome
from planfreeze.record import ProgramRecord
from planfreeze.slots import build_programs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def empty(tmp_path):
    """An empty store."""
    return Store.open(tmp_path / "store", writable=True)


@pytest.fixture
def build(toolchains):
    """Build plans in this process with one compile process."""
    return lambda store, *plans, jobs=1, **options: build_plans(
        plans, store, jobs=jobs, toolchains=toolchains, **options
    )


def statuses(report):
    return [outcome.status for outcome in report.outcomes]


def list_names(store, kind):
    return sorted(entry.name for entry in store.entries(kind))


def quarantined(store):
    return sorted(path.name for path in store.layout.quarantine.iterdir() if not path.name.endswith(".reason"))


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


BUILD = """
import json, sys
from pathlib import Path
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload

def build(store, payloads, toolchains, jobs=1):
    plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=payloads)
    return build_plans([plan], Store.open(store, writable=True), jobs=jobs, toolchains=Path(toolchains))

def summary(report):
    return {
        "status": {outcome.program.key.digest: outcome.status for outcome in report.outcomes},
        "blobs": [outcome.record and outcome.record.blob for outcome in report.outcomes],
        "roots": [plan.root for plan in report.plans],
        "compilers": sorted({"triton", "cutlass", "torch", "cuda"} & set(sys.modules)),
    }
"""


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


def test_sixteen_builders_compile_each_key_once(interpreter, toolchains, tmp_path):
    script = BUILD + (
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "payloads = (*(AddPayload(block=block) for block in (16, 32, 64)), CopyPayload())\n"
        "print(json.dumps(summary(build(sys.argv[1], payloads, sys.argv[2], jobs=2))))\n"
    )
    started = [interpreter.start("-c", script, str(tmp_path / "store"), str(toolchains)) for _ in range(16)]
    for builder in started:
        assert builder.stdout.readline() == "ready\n", builder.stderr.read()
    for builder in started:
        builder.stdin.write("\n")
        builder.stdin.flush()
    ended = [builder.communicate(timeout=300) for builder in started]
    assert [builder.returncode for builder in started] == [0] * 16, ended
    made = [json.loads(output) for output, _ in ended]
    for key in made[0]["status"]:
        found = [one["status"][key] for one in made]
        assert sorted(found) == ["compiled", *["reused"] * 15]
    assert len({tuple(one["roots"]) for one in made}) == 1 and len(made[0]["roots"]) == 1
    store = Store.open(tmp_path / "store")
    assert list(store.list_refs().values()) == made[0]["roots"]
    assert list(store.layout.temporaries.iterdir()) == quarantined(store) == []


# A model of the package: the first program compiles, the second one does what the model's name says.
MODEL = """
hidden = 64
intermediate = 1
experts = 1
top_k = 1
weight_format = "mxfp4"
programs = "toys.models:enumerate_programs"
"""


@pytest.fixture
def start_build(interpreter, tmp_path):
    """Start the command line's build of a model of the package ``toys``."""

    def start(model: str) -> subprocess.Popen[str]:
        path = tmp_path / f"{model}.toml"
        path.write_text(MODEL)
        store = str(tmp_path / "store")
        return interpreter.start(
            *("-m", "planfreeze", "build", "--model", str(path), "--arch", "sm_90a", "--store", store, "--jobs", "1")
        )

    return start


def test_interrupted_build_keeps_what_is_published_and_exits_130(start_build, interpreter, tmp_path, wait_for):
    builder = start_build("wait")
    worker = int(wait_for(interpreter.home / "waiting"))
    builder.send_signal(signal.SIGINT)
    _, errors = builder.communicate(timeout=60)
    assert builder.returncode == 130, errors
    assert "interrupted" in errors and "Traceback" not in errors
    store = Store.open(tmp_path / "store")
    (key,) = list_names(store, "record")
    assert store.get_blob(ProgramRecord.decode(store.get_record(key)).blob)
    assert store.list_refs() == {} and list(store.layout.temporaries.iterdir()) == []
    assert not Path(f"/proc/{worker}").exists(), "no compile process is left"
    assert [path.name for path in interpreter.home.glob("planfreeze-*")] == []


def test_builder_that_waits_for_another_one_can_be_interrupted(start_build, built, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    with store.lock_key(built.keyed[1].key.digest, timeout_s=1):
        builder = start_build("plain")
        assert "compiled toys_add" in builder.stderr.readline(), "the other program comes first"
        builder.send_signal(signal.SIGINT)
        _, errors = builder.communicate(timeout=60)
    assert builder.returncode == 130, errors
    assert len(list_names(store, "record")) == 1


def test_failed_program_gives_exit_status_1(start_build, tmp_path):
    builder = start_build("raise")
    _, errors = builder.communicate(timeout=60)
    assert builder.returncode == 1, errors
    assert "error: toys_copy(mode=raise) (sm_90a)" in errors and "this kernel has no solution" in errors
    assert Store.open(tmp_path / "store").list_refs() == {}


def test_builder_waits_for_another_one_and_takes_its_program(built, build, toys, empty):
    key = built.keyed[0].key.digest
    outcome = built.report.outcomes[0]
    told = threading.Event()
    reports, waits = [], []

    def hear(outcome):
        waits.append(outcome) if outcome.status == "waiting" else told.set()

    def run():
        reports.append(build(empty, built.plan, on_outcome=hear))

    with empty.lock_key(key, timeout_s=1):
        builder = threading.Thread(target=run)
        builder.start()
        assert told.wait(60), "the program that is not locked is compiled meanwhile"
        empty.put_blob(built.store.get_blob(outcome.record.blob))
        empty.put_record(key, built.store.get_record(key))
    builder.join(60)
    assert statuses(reports[0]) == ["reused", "compiled"]
    assert waits and {wait.program.key.digest for wait in waits} == {key}
    assert f"process {os.getpid()} on " in describe_wait(waits[0]) and built.keyed[0].name in describe_wait(waits[0])


def test_builder_that_waits_says_so_every_so_often(built, build, empty, monkeypatch, capsys):
    monkeypatch.setattr(slots, "LOCK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(slots, "LOCK_STEP_S", 0.02)
    monkeypatch.setattr(slots, "TELL_S", 0.2)
    with empty.lock_key(built.keyed[0].key.digest, timeout_s=1):
        report = build(empty, built.plan, on_outcome=print_outcome)
    assert statuses(report) == ["failed", "compiled"]
    waits = [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting ")]
    assert 1 <= len(waits) <= 4


def test_builder_that_waited_in_vain_names_the_holder(built, build, empty, monkeypatch):
    monkeypatch.setattr(slots, "LOCK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(slots, "LOCK_STEP_S", 0.1)
    with empty.lock_key(built.keyed[0].key.digest, timeout_s=1):
        report = build(empty, built.plan)
    assert statuses(report) == ["failed", "compiled"] and report.plans == ()
    assert "has held key" in report.outcomes[0].reason and "process" in report.outcomes[0].reason


def flip(path):
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])


DAMAGE = {
    "blob flipped": ("blob", flip),
    "blob cut off": ("blob", lambda path: path.write_bytes(path.read_bytes()[:100])),
    "blob empty": ("blob", lambda path: path.write_bytes(b"")),
    "blob a folder": ("blob", lambda path: (path.unlink(), path.mkdir())),
    "record flipped": ("record", flip),
    "record cut off": ("record", lambda path: path.write_bytes(path.read_bytes()[:50])),
    "record a link": ("record", lambda path: (path.unlink(), path.symlink_to("/etc/hostname"))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entry_is_put_aside_and_compiled_again(built, build, tmp_path, damage):
    store = built.copy(tmp_path / "store")
    kind, harm = DAMAGE[damage]
    outcome = built.report.outcomes[0]
    name = outcome.program.key.digest if kind == "record" else outcome.record.blob
    harm(store.layout.entry(kind, name))
    report = build(store, built.plan)
    assert statuses(report) == ["compiled", "reused"]
    assert report.plans == built.report.plans
    assert store.get_blob(outcome.record.blob) == built.store.get_blob(outcome.record.blob)
    assert [entry for entry in quarantined(store) if name in entry] == quarantined(store) != []


@pytest.mark.parametrize("kind", ["blob", "record"])
def test_missing_entry_is_compiled_again(built, build, tmp_path, kind):
    store = built.copy(tmp_path / "store")
    outcome = built.report.outcomes[0]
    store.layout.entry(kind, outcome.program.key.digest if kind == "record" else outcome.record.blob).unlink()
    report = build(store, built.plan)
    assert statuses(report) == ["compiled", "reused"] and report.plans == built.report.plans
    assert quarantined(store) == []


@pytest.mark.parametrize("foreign", ["another program", "another arch", "no record"])
def test_whole_record_that_is_not_this_programs_is_put_aside_and_compiled_again(built, build, tmp_path, foreign):
    store = built.copy(tmp_path / "store")
    key, record = built.keyed[0].key.digest, built.report.outcomes[0].record
    store.layout.entry("record", key).unlink()
    others = {
        "another program": built.report.outcomes[1].record.encode(),
        "another arch": replace(record, arch="sm_120a").encode(),
        "no record": b"written by something else",
    }
    assert store.put_record(key, others[foreign]).outcome == "published"
    report = build(store, built.plan)
    assert statuses(report) == ["compiled", "reused"] and report.plans == built.report.plans
    assert len(quarantined(store)) == 1


def test_build_that_gives_another_result_for_the_same_inputs_is_reported(built, build, tmp_path):
    store = built.copy(tmp_path / "store")
    outcome = built.report.outcomes[0]
    key = outcome.program.key.digest
    store.layout.entry("record", key).unlink()
    other = replace(outcome.record, blob=digest_of(b"a cubin that is gone")).encode()
    store.put_record(key, other)
    report = build(store, built.plan)
    assert statuses(report) == ["failed", "reused"] and report.plans == ()
    assert report.outcomes[0].reason.startswith("not reproducible: record ")
    assert outcome.record_digest in report.outcomes[0].reason and digest_of(other) in report.outcomes[0].reason
    assert store.get_record(key) == other, "what is published is never changed"


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
    probe = [executable, "-c", "import cutlass, msgpack, triton; print(triton.__version__)"]
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
