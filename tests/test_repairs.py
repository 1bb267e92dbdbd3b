"""Repairing a store: what a plan lacks is built again, by kernels and compilers that are those of the plan."""

import pytest
from msgspec.structs import replace

from planfreeze.builds import build_plans
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.repairs import repair
from planfreeze.resolve import resolve_plan
from planfreeze.verification import quarantine, verify

from .verified_stores import NAME, facts, flip


@pytest.mark.parametrize(("kind", "is_gone"), [("blob", False), ("record", True)])
def test_a_repair_builds_again_what_a_plan_lacks(store, frozen, toolchains, kind, is_gone):
    entry = frozen.entries[0]
    path = store.layout.entry(kind, entry.blob if kind == "blob" else entry.key)
    whole = path.read_bytes()
    path.unlink() if is_gone else flip(path)
    problems = quarantine(verify(store).problems, store)
    repaired = repair(problems, store, jobs=1, toolchains=toolchains)
    assert (repaired.rebuilt, repaired.restored, repaired.refused) == (1, (), ())
    assert path.read_bytes() == whole
    assert facts(store) == [] and resolve_plan(frozen, store).check()


def test_a_repair_turns_no_name_to_another_plan(store, frozen, built, toys, toolchains):
    newer = toys.plan(built.plan.payloads[0])
    (newest,) = build_plans([newer], store, jobs=1, toolchains=toolchains).plans
    assert store.get_ref(NAME) == newest.root != frozen.root
    store.layout.entry("record", frozen.entries[1].key).unlink()
    assert repair(verify(store).problems, store, jobs=1, toolchains=toolchains).rebuilt == 1
    assert store.get_ref(NAME) == newest.root
    assert facts(store) == []


def test_a_plan_of_other_kernels_is_not_repaired_by_these(toolchains, tmp_path, make_package, toys):
    package = make_package("ageing")
    from ageing.families import AddPayload

    store = Store.open(tmp_path / "store", writable=True)
    (frozen,) = build_plans([toys.plan(AddPayload(block=64))], store, jobs=1, toolchains=toolchains).plans
    store.layout.entry("blob", frozen.entries[0].blob).unlink()
    (package / "shared.py").write_text("AMOUNT = 8\n")
    repaired = repair(verify(store).problems, store, jobs=1, toolchains=toolchains)
    assert repaired.rebuilt == 0
    ((what, reason),) = repaired.refused
    assert what == f"{NAME}@sha256:{frozen.root}" and "ageing.shared" in reason
    assert len(facts(store)) == 2, "and it is still told"


def test_a_plan_of_another_compiler_is_not_repaired_by_this_one(store, frozen, toolchains):
    other = replace(frozen, entries=(replace(frozen.entries[0], key="0" * 64), frozen.entries[1]))
    store.put_plan(other.encode())
    ((what, reason),) = repair(verify(store).problems, store, jobs=1, toolchains=toolchains).refused
    assert other.root in what and "1 of 2 programs have another key here" in reason


def test_a_damaged_reference_leads_to_the_only_plan_of_its_name_again(store, frozen, toolchains):
    store.layout.entry("ref", NAME).write_bytes(b"damaged")
    problems = quarantine(verify(store).problems, store)
    assert repair(problems, store, jobs=1, toolchains=toolchains).restored == (NAME,)
    assert store.get_ref(NAME) == frozen.root
    store.put_plan(replace(frozen, options=("--capacity", "8")).encode())
    store.layout.entry("ref", NAME).write_bytes(b"damaged")
    problems = quarantine(verify(store).problems, store)
    ((name, reason),) = repair(problems, store, jobs=1, toolchains=toolchains).refused
    assert name == NAME and "2 plans of this name" in reason and "planfreeze build --model toys" in reason


def test_a_reference_that_cannot_be_restored_comes_with_the_command_of_a_family(store, frozen, toolchains, monkeypatch):
    monkeypatch.setattr("planfreeze.entry_points.has_entry_point", lambda group, name: name == "toys")
    store.layout.entry("plan", frozen.root).unlink()
    ((name, reason),) = repair(verify(store).problems, store, jobs=1, toolchains=toolchains).refused
    assert name == NAME and f"plan {frozen.root} is not there" in reason
    assert f"planfreeze build --family toys --arch sm_90a --store {store.path}" in reason


def test_a_record_that_no_plan_needs_and_that_lost_its_cubin_is_put_aside_by_a_repair(store, frozen, stock, toolchains):
    record, _ = stock.record("orphan")
    store.put_record(digest_of(b"orphan"), record.encode())
    problems = verify(store).problems
    assert [problem.state for problem in problems] == ["incomplete"]
    repair(problems, store, jobs=1, toolchains=toolchains)
    assert facts(store) == [] and not store.has_record(digest_of(b"orphan"))
