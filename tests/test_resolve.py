"""Resolving: a frozen plan's programs are proven, or every one that is missing or damaged is listed."""

import json

import pytest
from msgspec.structs import replace

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import (
    DamagedEntry,
    DamagedPrograms,
    InvalidPayload,
    KernelsDiffer,
    MissingEntry,
    MissingPrograms,
    UnexpectedCubin,
    UnknownArch,
    UnknownFamily,
    WrongArch,
)
from planfreeze.family import pointer, scalar
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.record import ProgramRecord
from planfreeze.resolve import (
    check_kernels,
    planned_programs,
    program_name,
    resolve_plan,
    resolve_program,
)

NAME = "toys-tp1-sm_90a"


def forge(store, plan, **changes):
    """Publish another record for the first program and a plan that names it: every digest is right."""
    entry = plan.entries[0]
    record = replace(ProgramRecord.decode(store.get_record(entry.key)), **changes)
    store.layout.entry("record", entry.key).unlink()
    digest = store.put_record(entry.key, record.encode()).digest
    return replace(plan, entries=(replace(entry, record=digest, blob=record.blob), *plan.entries[1:]))


def test_whole_plan_resolves_to_its_programs(built, frozen):
    programs = resolve_plan(frozen, built.store).check()
    assert [program.name for program in programs] == ["toys_add(block=64, warps=1)", "toys_copy(mode=plain)"]
    assert [program.payload for program in programs] == list(built.plan.payloads)
    assert [program.record for program in programs] == [outcome.record for outcome in built.report.outcomes]
    assert [program.cubin for program in programs] == [built.store.get_blob(entry.blob) for entry in frozen.entries]


def test_resolving_imports_no_compiler_and_changes_nothing(built, interpreter):
    before = {path: path.lstat() for path in built.store.path.rglob("*")}
    script = """
        import json, sys
        from planfreeze.cache.store import Store
        from planfreeze.resolve import PlanReference, check_kernels, find_plan, resolve_plan
        store = Store.open(sys.argv[1])
        plan = find_plan(store, PlanReference(sys.argv[2], None))
        check_kernels(plan)
        resolved = resolve_plan(plan, store).check()
        print(json.dumps([len(resolved), sorted({"triton", "cutlass", "torch"} & set(sys.modules))]))
        """
    assert json.loads(interpreter.run(script, str(built.store.path), NAME)) == [2, []]
    assert {path: path.lstat() for path in built.store.path.rglob("*")}.keys() == before.keys()
    assert all(path.lstat().st_mtime_ns == status.st_mtime_ns for path, status in before.items())


@pytest.mark.parametrize("kind", ["record", "blob"])
def test_missing_program_is_listed_with_the_command_that_builds_it(store, frozen, kind):
    entry = frozen.entries[1]
    store.layout.entry(kind, entry.key if kind == "record" else entry.blob).unlink()
    resolution = resolve_plan(frozen, store)
    assert resolution.missing == ("toys_copy(mode=plain)",)
    assert (len(resolution.programs), resolution.damaged) == (1, ())
    with pytest.raises(MissingPrograms) as raised:
        resolution.check()
    assert str(raised.value).startswith(f"1 of 2 programs of {NAME} are not in {store.path}.")
    assert f"planfreeze build --model toys --tp 1 --arch sm_90a --store {store.path}" in str(raised.value)
    assert str(raised.value).endswith("\n  toys_copy(mode=plain)")
    assert raised.value.exit_code == 3


def test_every_missing_program_is_listed_at_once(store, frozen):
    for entry in frozen.entries:
        store.layout.entry("record", entry.key).unlink()
    with pytest.raises(MissingPrograms) as raised:
        resolve_plan(frozen, store).check()
    assert raised.value.missing == ("toys_add(block=64, warps=1)", "toys_copy(mode=plain)")


@pytest.mark.parametrize("kind", ["record", "blob"])
@pytest.mark.parametrize("place", [0, 33, -1])
def test_flipped_byte_is_damage_of_the_named_program(store, frozen, kind, place):
    entry = frozen.entries[0]
    path = store.layout.entry(kind, entry.key if kind == "record" else entry.blob)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    resolution = resolve_plan(frozen, store)
    (damaged,) = resolution.damaged
    assert damaged.startswith("toys_add(block=64, warps=1): ") and "is damaged" in damaged
    assert (len(resolution.programs), resolution.missing) == (1, ())
    with pytest.raises(DamagedPrograms) as raised:
        resolution.check()
    assert raised.value.exit_code == 4 and "toys_add(block=64, warps=1)" in str(raised.value)
    assert path.read_bytes() == data, "a reader repairs nothing"


def test_damage_is_told_before_what_is_missing(store, frozen):
    store.layout.entry("blob", frozen.entries[0].blob).write_bytes(b"damaged")
    store.layout.entry("blob", frozen.entries[1].blob).unlink()
    resolution = resolve_plan(frozen, store)
    assert (len(resolution.damaged), len(resolution.missing)) == (1, 1)
    with pytest.raises(DamagedPrograms):
        resolution.check()


def test_whole_record_that_is_not_the_planned_one_is_damage(store, frozen):
    entry = frozen.entries[0]
    forge(store, frozen, registers=255)
    with pytest.raises(DamagedEntry, match="its digest is"):
        resolve_program(planned_programs(frozen)[0], store)
    assert (
        "its digest is" in resolve_plan(frozen, store).damaged[0]
        and entry.record in resolve_plan(frozen, store).damaged[0]
    )


def test_cubin_of_another_arch_in_its_place_is_damage(built, store, frozen, toys, toolchains):
    other = toys.plan(built.plan.payloads[0], arch="sm_120a")
    (outcome,) = build_plans([other], store, jobs=1, toolchains=toolchains).outcomes
    cubin = store.get_blob(outcome.record.blob)
    store.layout.entry("blob", frozen.entries[0].blob).write_bytes(cubin)
    assert "is damaged" in resolve_plan(frozen, store).damaged[0]


def test_cubin_of_another_arch_with_all_digests_right_is_refused_by_both_names(built, store, frozen, toys, toolchains):
    other = toys.plan(built.plan.payloads[0], arch="sm_120a")
    (outcome,) = build_plans([other], store, jobs=1, toolchains=toolchains).outcomes
    forged = forge(store, frozen, blob=outcome.record.blob)
    with pytest.raises(WrongArch, match=r"toys_add\(block=64, warps=1\) is made for sm_120a, not for sm_90a"):
        resolve_program(planned_programs(forged)[0], store)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payload": b"\x92\xa8toys_add\x91\x92\xa5block A"}, "its record is another program's"),
        ({"symbol": "other_kernel"}, "its record describes another kernel"),
        ({"parameter_bytes": (8, 8, 4, 8)}, "its record describes another kernel"),
    ],
)
def test_record_that_contradicts_the_plan_or_the_cubin_is_refused(store, frozen, changes, reason):
    forged = forge(store, frozen, **changes)
    with pytest.raises(UnexpectedCubin, match=rf"toys_add\(block=64, warps=1\): {reason}"):
        resolve_program(planned_programs(forged)[0], store)
    assert reason in resolve_plan(forged, store).damaged[0]


def test_plan_entry_that_names_another_programs_cubin_is_refused(store, frozen):
    mixed = replace(frozen, entries=(replace(frozen.entries[0], blob=frozen.entries[1].blob), frozen.entries[1]))
    assert "its record is another program's" in resolve_plan(mixed, store).damaged[0]


def test_program_whose_family_now_takes_other_arguments_is_refused(store, frozen):
    planned = planned_programs(frozen)[0]
    wider = (pointer("source", "i32", len), pointer("out", "i32", len), scalar("count", "i64"))
    changed = replace(planned, definition=replace(planned.definition, arguments=wider))
    with pytest.raises(
        UnexpectedCubin, match=r"its parameters have \(8, 8, 4, 8, 8\) bytes.*arguments \(8, 8, 8, 8, 8\)"
    ):
        resolve_program(changed, store)


def test_missing_entry_of_one_program_is_its_own_error(store, frozen):
    store.layout.entry("record", frozen.entries[0].key).unlink()
    with pytest.raises(MissingEntry):
        resolve_program(planned_programs(frozen)[0], store)


def test_kernels_that_are_the_built_ones_pass(frozen):
    check_kernels(frozen)


def test_kernels_that_differ_are_named_with_their_modules(toys, toolchains, tmp_path, make_package):
    package = make_package("drifting")
    from drifting.families import AddPayload

    store = Store.open(tmp_path / "store", writable=True)
    plan = toys.plan(AddPayload(block=64), toys.families.AddPayload(block=64), model="mixed")
    (frozen,) = build_plans([plan], store, jobs=1, toolchains=toolchains).plans
    check_kernels(frozen)
    (package / "shared.py").write_text("AMOUNT = 8\n")
    (package / "unrelated.py").write_text("")
    with pytest.raises(KernelsDiffer) as raised:
        check_kernels(frozen)
    assert raised.value.differing == ("drifting.families:add (drifting.shared)",)
    assert "mixed-tp1-sm_90a" in str(raised.value) and raised.value.exit_code == 3
    (package / "shared.py").unlink()
    with pytest.raises(KernelsDiffer, match=r"drifting\.shared.*folder on PYTHONPATH"):
        check_kernels(frozen)


def change_entry(plan, **changes):
    return replace(plan, entries=(replace(plan.entries[0], **changes), *plan.entries[1:]))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda plan: replace(plan, arch="sm_90"), UnknownArch),
        (lambda plan: change_entry(plan, family="toys.families:gone"), UnknownFamily),
        (lambda plan: change_entry(plan, family="no_such_package:add"), UnknownFamily),
        (lambda plan: change_entry(plan, family="..:add"), UnknownFamily),
        (lambda plan: change_entry(plan, family=""), UnknownFamily),
        (lambda plan: change_entry(plan, family="json:loads"), UnknownFamily),
        (lambda plan: change_entry(plan, fields=(("block", 64), ("later", 1))), InvalidPayload),
        (lambda plan: change_entry(plan, fields=(("warps", 1),)), InvalidPayload),
        (lambda plan: change_entry(plan, fields=(("block", "64"),)), InvalidPayload),
    ],
)
def test_plan_that_is_not_known_here_is_refused(built, frozen, change, error):
    changed = change(frozen)
    assert FrozenPlan.decode(changed.encode()) == changed
    with pytest.raises(error):
        resolve_plan(changed, built.store)


def test_planned_programs_read_no_store(built, frozen):
    planned = planned_programs(frozen)
    assert [program.payload for program in planned] == list(built.plan.payloads)
    assert [program.target.arch for program in planned] == ["sm_90a", "sm_90a"]
    assert [program.entry for program in planned] == list(frozen.entries)


def test_program_is_named_by_family_and_fields(toys):
    assert program_name(toys.families.AddPayload(block=8)) == "toys_add(block=8, warps=1)"
