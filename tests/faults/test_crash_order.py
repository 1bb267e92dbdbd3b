"""Order of writing: whenever a builder dies or the power fails, a plan is complete or not there."""

import random
import re
import shutil
from pathlib import Path

STORE = "deep/store"


def record(shop, disk, place: Path, meet=None):
    """Record a build, or two when ``meet`` starts another one in its midst."""
    recorder = disk.Disk(root=place / "recorded")
    recorder.meet = meet or recorder.meet
    with recorder.mounted():
        assert shop.build(recorder.root / STORE).count("failed") == 0
    operations = recorder.operations[1:]  # the root itself is there from the beginning
    shutil.rmtree(recorder.root)
    return operations


def kind_of(operation) -> str:
    return operation.path.removeprefix(f"{STORE}/").partition("/")[0]


def test_every_entry_is_written_flushed_named_and_its_folder_flushed_in_this_order(shop, disk, place) -> None:
    operations = record(shop, disk, place)
    published = [operation for operation in operations if operation.call in ("link", "rename")]
    kinds = [re.match(rf"{STORE}/(\w+)", operation.target)[1] for operation in published]
    program = ["objects", "records", "notes"]
    assert kinds == ["CACHEDIR", "format", *program, *program, "objects", *program, "plans", "refs"]
    for operation in published:
        at = operations.index(operation)
        before = [step.call for step in operations[:at] if step.path == operation.path]
        assert before == ["open to write", "lock", "write", "fsync"]
        folder = str(Path(operation.target).parent)
        after = next(step for step in operations[at + 1 :] if step.call == "fsync")
        assert after.path == folder, "the next flush is that of the name"
        if operation is not published[-1]:
            following = operations.index(published[published.index(operation) + 1])
            assert operations.index(after) < following, "before anything else appears"
    for made in (operation for operation in operations if operation.call == "mkdir"):
        after = operations[operations.index(made) + 1 :]
        assert next(step for step in after if step.call == "fsync").path == str(Path(made.path).parent)


def test_after_every_operation_a_crash_leaves_the_plan_complete_or_not_there(shop, disk, power, place) -> None:
    chance = random.Random(5)
    model, looks = power.PowerModel(), {}
    for operation in record(shop, disk, place):
        model.apply(operation)
        if operation.call in ("open to read", "read", "close", "lock", "unlock"):
            continue
        for name, keep_names, keep_bytes in power.states(chance):
            state = place / "state"
            model.write(state, keep_names, keep_bytes)
            looks.setdefault(name, []).append(shop.look(state / STORE))
            if "mixture" not in name:
                shop.check_entries(state / STORE)
            if chance.random() < 0.1:
                with disk.Disk(root=state).mounted():
                    shop.build_whole(state / STORE)
            shutil.rmtree(state)
    for name, seen in looks.items():
        assert seen[0] == "not there", name
        assert seen[-1] == "complete", name
        assert "mixture" in name or seen == sorted(seen, reverse=True), f"{name}: what is complete stays so"


def test_a_loss_of_power_after_two_builders_met_leaves_the_plan_complete_or_not_there(shop, disk, power, place) -> None:
    path, looks = place / "recorded" / STORE, []
    alone = record(shop, disk, place)
    # The other one comes when a name is there and not yet flushed.
    for number in (step.number for step in alone if step.call == "fsync" and "/tmp/" not in step.path):
        model, is_named = power.PowerModel(), False
        for operation in record(shop, disk, place, disk.pause(number, lambda: shop.build(path))):
            model.apply(operation)
            is_named = is_named or operation.target.startswith(f"{STORE}/refs/")
            # Before the plan has its name nothing can be amiss, and only flushes change what is safe.
            if is_named and operation.call == "fsync":
                model.write(place / "state", power.safe_names, power.safe_bytes)
                looks.append(shop.look(place / "state" / STORE))
                shutil.rmtree(place / "state")
    assert looks.count("complete") > 100
