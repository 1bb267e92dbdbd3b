"""What ``planfreeze diff`` says of two builds: by a stub compiler in two versions."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace
from typer.testing import CliRunner

from planfreeze import comparison, disassembly, keyed, slots
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.cli import app
from planfreeze.comparison import Side, compare
from planfreeze.comparison_reports import comparison_json, summarize
from planfreeze.compilers import CompiledProgram
from planfreeze.packs import pack_plans
from planfreeze.plans import Plan
from planfreeze.resolve import find_plans
from planfreeze.toolchain import Toolchain

ROOT = Path(__file__).parents[1]
LOG = "    {0} bytes stack frame, {0} bytes spill stores, {0} bytes spill loads"


def run(*arguments: object) -> tuple[int, str, str]:
    """Run the command line in this process; return status, standard output and standard error."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout, done.stderr


class Workshop(Struct, frozen=True):
    """Builds by a compiler that compiles nothing, of whatever version it is said to be."""

    folder: Path
    add: type
    plan: Callable[..., Plan]
    plain: CompiledProgram
    other: CompiledProgram
    monkeypatch: pytest.MonkeyPatch

    def build(self, name: str, *blocks: int, version: str = "3.6.0", changed: tuple[int, ...] = ()) -> Store:
        """Build programs of these blocks into a store; those that are named get other code and spill four bytes."""
        worker = load_stub_compiler().stub_worker({})

        def compile_program(stub, task):
            is_changed = task.payload.block in changed
            base = self.other if is_changed else self.plain
            # What follows the last section belongs to no section: readers of the cubin pass over it.
            return replace(base, cubin=base.cubin + task.payload.encode(), log=LOG.format(4 * is_changed))

        self.monkeypatch.setattr(type(worker(None)), "compile", compile_program)
        self.monkeypatch.setattr(slots, "Worker", worker)
        toolchain = Toolchain("triton", version, version.encode().hex() * 8)
        self.monkeypatch.setattr(keyed, "find_toolchain", lambda dialect, cache: toolchain)
        store = Store.open(self.folder / name, writable=True)
        report = build_plans([self.plan(*map(self.make, blocks))], store, jobs=1, toolchains=self.folder / "toolchains")
        assert report.count("failed") == 0, report
        return store

    def make(self, block: int):
        return self.add(block=block)


def load_stub_compiler():
    spec = importlib.util.spec_from_file_location("stub_compiler", ROOT / "tools/stub_compiler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def other_code(toys, toolchains, tmp_path_factory) -> CompiledProgram:
    """A program of family ``add`` whose code is not that of blocks of 64."""
    store = Store.open(tmp_path_factory.mktemp("other") / "store", writable=True)
    report = build_plans([toys.plan(toys.families.AddPayload(block=512))], store, jobs=1, toolchains=toolchains)
    (record,) = (outcome.record for outcome in report.outcomes)
    return CompiledProgram(cubin=store.get_blob(record.blob), launch=record.launch)


@pytest.fixture
def workshop(built, toys, other_code, tmp_path, monkeypatch) -> Workshop:
    record = next(o.record for o in built.report.outcomes if o.program.payload.family_name == "toys_add")
    plain = CompiledProgram(cubin=built.store.get_blob(record.blob), launch=record.launch)
    return Workshop(tmp_path, toys.families.AddPayload, toys.plan, plain, other_code, monkeypatch)


def side(store) -> Side:
    return Side(store=store, plans=find_plans(store, None))


def states(found) -> dict[int, str]:
    return {dict(change.facts.fields)["block"]: change.state for change in found.programs}


def test_two_builds_of_the_same_inputs_are_the_same(workshop):
    before, after = workshop.build("a", 64, 128), workshop.build("b", 64, 128)
    found = compare(side(before), side(after))
    assert states(found) == {64: "same", 128: "same"} and found.is_empty and found.causes == ()
    status, stdout, _ = run("diff", before.path, after.path)
    assert (status, stdout) == (0, "all 2 programs are the same\n")


def test_a_compiler_that_makes_the_same_code_changes_keys_alone(workshop):
    before, after = workshop.build("a", 64, 128), workshop.build("b", 64, 128, version="3.9.0")
    found = compare(side(before), side(after))
    assert states(found) == {64: "rekeyed", 128: "rekeyed"}
    assert summarize(found) == "toolchain changed 0 of 2 programs; 2 have the same code under another key"
    status, stdout, _ = run("diff", before.path, after.path)
    head, reason, *listed, summary = stdout.splitlines()
    assert (status, head, summary) == (1, "rekeyed: 2 programs", summarize(found))
    assert reason.startswith("  toolchain: triton 3.6.0 ")
    assert listed == [f"  - toys_add(block={block}, warps=1) (sm_90a)" for block in (64, 128)]


def test_a_compiler_that_makes_other_code_is_named_with_what_it_changed(workshop):
    before = workshop.build("a", 64, 128, 256)
    after = workshop.build("b", 64, 128, 256, version="3.9.0", changed=(128,))
    found = compare(side(before), side(after))
    assert states(found) == {64: "rekeyed", 128: "changed", 256: "rekeyed"}
    (change,) = (change for change in found.programs if change.state == "changed")
    assert [label for label, _ in change.reasons] == ["toolchain"]
    assert re.fullmatch(r"triton 3\.6\.0 \w+ -> triton 3\.9\.0 \w+", dict(change.reasons)["toolchain"])
    assert change.measures["spill_store_bytes"] == (0, 4) and change.measures["registers"] == (
        change.before.record.registers,
        change.after.record.registers,
    )
    assert change.opcodes["LDG"][1] > change.opcodes["LDG"][0] and "EXIT" not in change.opcodes
    status, stdout, _ = run("diff", before.path, after.path)
    assert status == 1 and "changed: toys_add(block=128, warps=1) (sm_90a)\n" in stdout
    assert "  toolchain: triton 3.6.0" in stdout and "spill_store_bytes 0 -> 4" in stdout
    assert re.search(r"  instructions: .*LDG \d+ -> \d+", stdout)
    assert stdout.splitlines()[-1] == "toolchain changed 1 of 3 programs; 2 have the same code under another key"


def test_programs_of_one_side_alone_are_added_or_removed(workshop):
    before, after = workshop.build("a", 64, 128), workshop.build("b", 128, 256, 512)
    found = compare(side(before), side(after))
    assert states(found) == {64: "removed", 128: "same", 256: "added", 512: "added"}
    assert summarize(found) == "0 of 1 programs changed; 2 added; 1 removed"
    status, stdout, _ = run("diff", before.path, after.path)
    assert status == 1 and "removed: toys_add(block=64, warps=1)" in stdout


def test_a_changed_kernel_is_named_by_its_module_also_between_packs(workshop):
    before, after = workshop.build("a", 64), workshop.build("b", 64, version="3.9.0")
    (plan,) = find_plans(after, None)
    (family,) = plan.families
    modules = tuple((name, "0" * 64 if name == "toys.shared" else digest) for name, digest in family.sources.modules)
    sources = replace(family.sources, modules=modules)
    edited = Side(store=after, plans=(replace(plan, families=(replace(family, sources=sources),)),))
    (change,) = compare(side(before), edited).programs
    assert [label for label, _ in change.reasons] == ["toolchain"]  # labels tell, and there the text is the same
    key = plan.entries[0].key
    after.layout.entry("note", key).unlink()
    (change,) = compare(side(before), edited).programs
    assert change.reasons == (("sources", "toys.shared"),)
    (change,) = compare(side(before), side(after)).programs
    assert dict(change.reasons).keys() == {"unknown"}
    assert summarize(compare(side(before), side(after))) == (
        "0 of 1 programs changed; 1 have the same code under another key"
    )


def test_labels_that_say_the_text_is_another_are_spelled_as_modules(workshop):
    before, after = workshop.build("a", 64), workshop.build("b", 64, version="3.9.0")
    (plan,) = find_plans(after, None)
    (family,) = plan.families
    note = after.layout.entry("note", plan.entries[0].key)
    told = json.loads(note.read_text())
    told["labels"]["sources"] = "1" * 64
    note.write_text(json.dumps(told))
    modules = (*(pair for pair in family.sources.modules if pair[0] != "toys.shared"), ("toys.zeal", "0" * 64))
    edited = replace(plan, families=(replace(family, sources=replace(family.sources, modules=modules)),))
    (change,) = compare(side(before), Side(store=after, plans=(edited,))).programs
    assert dict(change.reasons)["sources"] == "toys.shared (gone), toys.zeal (new)"


def test_stores_packs_and_plans_are_compared_in_any_mix(workshop):
    before = workshop.build("a", 64, 128)
    after = workshop.build("b", 64, 128, version="3.9.0", changed=(64,))
    workshop.monkeypatch.setattr(comparison, "find_disassemblers", lambda: ())  # a process for each program
    pack = workshop.folder / "b.pfz"
    pack_plans(find_plans(after, None), after, pack)
    (plan,) = find_plans(after, None)
    for other in (
        after.path,
        pack,
        f"{plan.name}@{after.path}",
        f"{plan.name}@{pack}",
        f"{plan.name}@sha256:{plan.root}@{after.path}",
        f"{plan.root}@{pack}",
    ):
        status, stdout, stderr = run("diff", before.path, other)
        assert status == 1, stderr
        assert "1 of 2 programs" in stdout.splitlines()[-1]
    for other in (plan.name, plan.root, f"{plan.name}@sha256:{plan.root}"):
        assert run("diff", pack, other, "--store", after.path)[:2] == (0, "all 2 programs are the same\n")


def test_two_plans_of_one_name_are_compared_in_one_store(workshop):
    first = find_plans(workshop.build("a", 64, 128), None)[0]
    store = workshop.build("a", 64, 128, version="3.9.0", changed=(64, 128))
    status, stdout, _ = run("diff", f"{first.name}@sha256:{first.root}", first.name, "--store", store.path)
    assert status == 1 and stdout.splitlines()[-1] == "toolchain changed 2 of 2 programs"


def test_of_several_programs_of_one_payload_those_with_one_key_belong_together(workshop):
    first = find_plans(workshop.build("a", 64), None)[0]
    store = workshop.build("a", 64, version="3.9.0")
    (second,) = find_plans(store, None)
    both = compare(Side(store=store, plans=(first, second)), Side(store=store, plans=(second, first)))
    assert [change.state for change in both.programs] == ["same", "same"]
    fewer = compare(Side(store=store, plans=(first, second)), Side(store=store, plans=(second,)))
    assert sorted(change.state for change in fewer.programs) == ["removed", "same"]


def test_launch_facts_are_compared_where_the_code_is_the_same(workshop):
    before = workshop.build("a", 64)
    plain = workshop.plain
    wide = replace(plain, launch=replace(plain.launch, shared_bytes=512, is_cooperative=True))
    after = replace(workshop, plain=wide).build("b", 64, version="3.9.0")
    (change,) = compare(side(before), side(after)).programs
    assert change.state == "changed" and change.opcodes == {}
    assert change.measures["dynamic_shared_bytes"] == (0, 512)
    assert change.measures["is_cooperative"] == ("False", "True")


def test_without_a_disassembler_all_else_is_told(workshop):
    before, after = workshop.build("a", 64), workshop.build("b", 64, version="3.9.0", changed=(64,))
    workshop.monkeypatch.setattr(comparison, "find_disassemblers", lambda: ())
    (change,) = compare(side(before), side(after)).programs
    assert change.state == "changed" and change.opcodes is None
    assert "pip install nvidia-cuda-nvdisasm" in run("diff", before.path, after.path)[1]


def test_code_that_no_disassembler_reads_is_not_counted(workshop):
    before, after = workshop.build("a", 64), workshop.build("b", 64, version="3.9.0", changed=(64,))
    workshop.monkeypatch.setattr(disassembly, "run_tool", lambda tool, path: "newer than I am")
    (change,) = compare(side(before), side(after)).programs
    assert change.state == "changed" and change.opcodes is None


def test_what_cannot_be_compared_has_its_own_status(workshop, tmp_path):
    store = workshop.build("a", 64)
    assert run("diff", store.path, "nothing", "--store", store.path)[0] == 3
    assert run("diff", store.path, f"nothing@{tmp_path / 'none'}")[0] == 3
    assert run("diff", store.path, "@", "--store", store.path)[0] in (2, 3)
    for missing, what in ((tmp_path / "none", "store"), (tmp_path / "none.pfz", "pack"), ("none.pfz", "pack")):
        status, _, stderr = run("diff", missing, store.path, "--store", store.path)
        assert status == 3 and f"there is no {what} at {missing}" in " ".join(stderr.split())
    (plan,) = find_plans(store, None)
    store.layout.entry("blob", plan.entries[0].blob).write_bytes(b"damage")
    assert run("diff", store.path, store.path)[0] == 4


def test_the_page_names_every_key_of_the_json(workshop):
    before, after = workshop.build("a", 64), workshop.build("b", 64, version="3.9.0", changed=(64,))
    made = comparison_json(compare(side(before), side(after)))
    assert json.loads(run("diff", before.path, after.path, "--json")[1]) == json.loads(json.dumps(made))
    page = (ROOT / "docs/reference/diff.md").read_text()
    table = page.partition("## What `diff --json` prints")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", table))
    (program,) = made["programs"]
    assert named >= {*made, *program, *made["counts"], *made["before"], *program["before"]}
    assert named <= {*made, *program, *made["counts"], *made["before"], *program["before"], "name", "root", "unknown"}
