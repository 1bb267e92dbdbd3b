"""Resolving: a frozen plan's programs are proven, or every one that is missing or damaged is listed."""

import json
from dataclasses import replace

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import (
    DamagedEntry,
    DamagedPlan,
    DamagedPrograms,
    EmptyPlan,
    InvalidPayload,
    InvalidPlanReference,
    KernelsDiffer,
    MissingEntry,
    MissingPrograms,
    PlanMissing,
    UnexpectedCubin,
    UnknownArch,
    UnknownFamily,
    UntrustedStore,
    WrongArch,
)
from planfreeze.family import pointer, scalar
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.record import ProgramRecord
from planfreeze.resolve import (
    PlanReference,
    check_kernels,
    find_plan,
    planned_programs,
    program_name,
    resolve_plan,
    resolve_program,
)

NAME = "toys-tp1-sm_90a"


def publish(store, plan):
    """Store a plan under its name."""
    store.set_ref(plan.name, store.put_plan(plan.encode()))
    return plan


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


@pytest.mark.parametrize(
    ("text", "name", "root"),
    [
        (NAME, NAME, None),
        ("0" * 64, None, "0" * 64),
        (f"{NAME}@sha256:{'0' * 64}", NAME, "0" * 64),
        (f"@sha256:{'0' * 64}", None, "0" * 64),
    ],
)
def test_reference_to_a_plan_is_a_name_a_root_digest_or_both(text, name, root):
    reference = PlanReference.parse(text)
    assert (reference.name, reference.root) == (name, root)
    assert PlanReference.parse(str(reference)) == reference


@pytest.mark.parametrize("pin", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, f"{'0' * 64}@sha256:{'0' * 64}"])
def test_pin_that_is_no_digest_is_refused(pin):
    with pytest.raises(InvalidPlanReference, match="does not name a frozen plan") as raised:
        PlanReference.parse(f"{NAME}@sha256:{pin}")
    assert raised.value.exit_code == 2


def test_nothing_names_no_plan():
    with pytest.raises(InvalidPlanReference):
        PlanReference.parse("")


def find(store, text, **options):
    return find_plan(store, PlanReference.parse(text), **options)


@pytest.mark.parametrize("form", ["{name}", "{root}", "{name}@sha256:{root}", "@sha256:{root}"])
def test_plan_is_found_by_name_by_root_digest_and_pinned(built, frozen, form):
    assert find(built.store, form.format(name=NAME, root=frozen.root)) == frozen


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("toy-tp1-sm_90a", "toys-tp1-sm_90a"),
        ("toys-tp1-sm90a", "toys-tp1-sm_90a"),
        ("toys-tp1-sm_90", "toys-tp1-sm_90a"),
        ("toys-tp1-sm_120a", None),  # spelled right, and not built: what builds it is told
        ("toys-tp2-sm_90a", None),
        ("zzzzzz", None),
    ],
)
def test_a_mistyped_plan_is_refused_with_the_nearest_name(built, asked, near):
    with pytest.raises(PlanMissing) as raised:
        find_plan(built.store, PlanReference.parse(asked))
    assert raised.value.near == near and raised.value.known == ("toys-tp1-sm_90a",)
    assert (f"Did you mean {near}?" in str(raised.value)) == (near is not None)


def test_pinned_plan_that_is_not_there_is_refused(built):
    for pinned in (f"{NAME}@sha256:{'0' * 64}", f"@sha256:{'0' * 64}", "0" * 64):
        with pytest.raises(PlanMissing, match="0" * 64):
            find(built.store, pinned)


def test_pinned_plan_of_another_name_is_refused_by_both_names(built, frozen):
    with pytest.raises(PlanMissing, match=f"other-tp1-sm_90a@sha256:{frozen.root}") as raised:
        find(built.store, f"other-tp1-sm_90a@sha256:{frozen.root}")
    assert f"the plan of this root digest is {NAME}" in str(raised.value)


def test_pin_holds_when_the_name_is_turned_to_another_plan(store, frozen):
    newer = publish(store, replace(frozen, entries=frozen.entries[:1]))
    assert find(store, NAME) == newer
    assert find(store, f"{NAME}@sha256:{frozen.root}") == find(store, frozen.root) == frozen


def test_store_that_others_can_write_is_refused_unless_a_digest_proves_the_plan(store, frozen):
    store.path.chmod(0o777)
    with pytest.raises(UntrustedStore):
        find(store, NAME)
    assert find(store, f"{NAME}@sha256:{frozen.root}") == find(store, frozen.root) == frozen
    assert find(Store.open(store.path, is_trusted=True), NAME) == frozen


def test_unknown_name_is_refused_with_what_is_there_and_the_command(store, frozen):
    publish(store, replace(frozen, model="more"))
    with pytest.raises(PlanMissing) as raised:
        find(store, "ds41-tp4-sm_90a")
    assert f"It holds: more-tp1-sm_90a, {NAME}." in str(raised.value) and raised.value.exit_code == 3
    assert str(raised.value).endswith(f"Run: planfreeze build --model ds41 --tp 4 --arch sm_90a --store {store.path}")


def test_name_whose_plan_is_gone_is_refused(store, frozen):
    store.layout.entry("plan", frozen.root).unlink()
    with pytest.raises(PlanMissing, match=NAME):
        find(store, NAME)


def test_empty_plan_proves_nothing(store, frozen):
    empty = publish(store, replace(frozen, model="empty", entries=()))
    with pytest.raises(EmptyPlan, match="holds no program") as raised:
        find(store, empty.name)
    assert raised.value.exit_code == 3


def test_damaged_plan_is_refused(store, frozen):
    path = store.layout.entry("plan", frozen.root)
    path.write_bytes(path.read_bytes()[:-1])
    for text in (NAME, frozen.root, f"{NAME}@sha256:{frozen.root}"):
        with pytest.raises(DamagedEntry, match=f"plan {frozen.root}"):
            find(store, text)


def test_bytes_that_are_no_plan_are_refused_under_any_name(store):
    store.set_ref("nonsense", store.put_plan(b"nonsense"))
    with pytest.raises(DamagedPlan):
        find(store, "nonsense")


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
