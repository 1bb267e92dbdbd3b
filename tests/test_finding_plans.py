"""Finding plans: by name, by root digest, pinned, and refused with what is there."""

import pytest
from msgspec.structs import replace

from planfreeze.cache.store import Store
from planfreeze.errors import DamagedEntry, DamagedPlan, EmptyPlan, InvalidPlanReference, PlanMissing, UntrustedStore
from planfreeze.resolve import (
    PlanReference,
    find_plan,
)

NAME = "toys-tp1-sm_90a"


def publish(store, plan):
    """Store a plan under its name."""
    store.set_ref(plan.name, store.put_plan(plan.encode()))
    return plan


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
    with pytest.raises(PlanMissing, match=f"stands for {frozen.root}, which is not there: planfreeze verify --repair"):
        find(store, NAME)


def test_a_wrong_pin_is_told_what_the_name_stands_for(store, frozen):
    with pytest.raises(PlanMissing, match=rf"The name stands for {frozen.root}\."):
        find(store, f"{NAME}@sha256:{'0' * 64}")


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
