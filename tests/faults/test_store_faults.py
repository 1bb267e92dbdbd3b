"""Faults of the disk: at every operation of a build, every error, and what is left is whole and can be repaired."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from planfreeze.cache.lock import lock_key
from planfreeze.cache.store import Store
from planfreeze.errors import PlanfreezeError

ERRORS = [
    *(errno.EBUSY, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EXDEV, errno.EIO),
    *(errno.EACCES, errno.ENOLCK, errno.EOPNOTSUPP),
]
LASTING = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]
EXIT_CODES = {3, 4, 6}
STORE = "deep/store"


@pytest.fixture
def recording(shop, disk, place):
    """The operations of a build that nothing disturbs."""
    healthy = disk.Disk(root=place / "healthy")
    with healthy.mounted():
        assert shop.build(healthy.root / STORE).count("compiled") == 3
    return healthy.operations


def build_on(shop, faulty) -> str:
    """Build on a faulty disk: it ends as it should or with an error of ours. Returns how it ended."""
    with faulty.mounted():
        try:
            report = shop.build(faulty.root / STORE)
        except PlanfreezeError as error:
            assert error.exit_code in EXIT_CODES, error
            return "refused"
    return "whole" if report.plans else "incomplete"


def check(shop, faulty, ended: str) -> None:
    """What is left is whole, opens or is refused by name, and a healthy build compiles what is missing, no more."""
    path = faulty.root / STORE
    shop.check_entries(path)
    looked = shop.look(path)
    assert looked == "complete" if ended == "whole" else looked in ("complete", "not there")
    stored = [key for key in shop.keys if (path / "format").exists() and Store.open(path).has_record(key)]
    with type(faulty)(root=faulty.root).mounted():
        assert len(shop.build_whole(path)) == 3 - len(stored)
    store = Store.open(path)
    assert list(store.layout.quarantine.glob("*")) == []
    for key in shop.keys:
        with lock_key(store.layout, key, 0) as is_locked:
            assert is_locked
    shutil.rmtree(faulty.root)


def sweep(shop, disk, place: Path, meets) -> set[str]:
    """Build once for each fault, on a disk of its own; return how the builds ended."""
    ends = set()
    for name, meet in meets:
        faulty = disk.Disk(root=place / "faulty", meet=meet)
        try:
            ended = build_on(shop, faulty)
            check(shop, faulty, ended)
        except BaseException as error:
            error.add_note(f"the fault: {name}")
            raise
        ends.add(ended)
    return ends


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.__getitem__)
def test_a_build_meets_an_error_once(shop, disk, place, recording, number: int) -> None:
    meets = ((operation, disk.fail(operation.number, number)) for operation in recording)
    ends = sweep(shop, disk, place, meets)
    assert "whole" in ends
    assert "refused" in ends or number in (errno.EACCES, errno.EOPNOTSUPP)


@pytest.mark.parametrize("number", LASTING, ids=errno.errorcode.__getitem__)
def test_a_disk_fails_from_an_operation_on(shop, disk, place, recording, number: int) -> None:
    met = [operation for operation in recording if operation.is_change][LASTING.index(number) :: 4]
    meets = ((operation, disk.fail(operation.number, number, is_lasting=True)) for operation in met)
    assert "refused" in sweep(shop, disk, place, meets)


def test_a_write_is_torn(shop, disk, place, recording) -> None:
    writes = [operation for operation in recording if operation.call == "write"]
    assert len(writes) > 12
    assert "refused" in sweep(shop, disk, place, ((write, disk.tear(write.number, errno.EIO)) for write in writes))


def test_a_builder_is_killed_at_any_operation(shop, disk, place, recording) -> None:
    looks = []
    for operation in recording:
        killed = disk.Disk(root=place / "killed", meet=disk.kill(operation.number, is_torn=operation.number % 2 == 0))
        with killed.mounted(), pytest.raises(disk.KilledError):
            shop.build(killed.root / STORE)
        assert [done.call for done in killed.operations] == [done.call for done in recording[: operation.number]]
        looks.append(shop.look(killed.root / STORE))
        check(shop, killed, "killed")
    first = looks.index("complete")
    assert set(looks[first:]) == {"complete"}, "once the plan is there it stays"
    assert recording[first - 1].target.startswith(f"{STORE}/refs/"), "the name of the plan is what completes it"


def test_another_builder_builds_everything_in_the_midst_of_any_operation(shop, disk, place, recording) -> None:
    for operation in recording:
        reports: list[object] = []
        shared = disk.Disk(root=place / "shared")
        shared.meet = disk.pause(operation.number, build_too(shop, shared, reports))
        shop.compiled.clear()
        with shared.mounted():
            mine = shop.build(shared.root / STORE)
        (other,) = reports
        for report in (mine, other):
            # The other one does not wait for the program that is at work here.
            assert report.count("failed") <= (1 if report is other else 0), (operation, report)
        assert len(shop.compiled) == 3, "each program is compiled by one of them"
        store = Store.open(shared.root / STORE)
        assert len(list(store.entries("record"))) == 3
        check(shop, shared, "whole")


@pytest.mark.parametrize("locks", ["none", "unsupported", "stale on every third"])
def test_builders_share_a_store_whose_locks_do_not_work(shop, disk, place, recording, locks: str) -> None:
    for operation in recording[::4]:
        reports: list[object] = []
        shared = disk.Disk(root=place / "shared", has_locks=locks != "none")
        shared.meet = BrokenLocks(locks, disk.pause(operation.number, build_too(shop, shared, reports)))
        with shared.mounted():
            mine = shop.build(shared.root / STORE)
        assert mine.count("failed") == 0
        # With some locks that work, the other one may meet the program that is at work here.
        assert all(report.count("failed") <= ("stale" in locks) for report in reports)
        assert reports or operation.number >= len(shared.operations), "fewer operations without a lock"
        check(shop, shared, "whole")


def build_too(shop, shared, reports: list[object]):
    return lambda: reports.append(shop.build(shared.root / STORE))


class BrokenLocks:
    """Locks that the system refuses, beside another meeting, which is met by everything."""

    def __init__(self, locks: str, meet) -> None:
        self.locks, self.meet, self.opened = locks, meet, 0

    def __call__(self, operation) -> None:
        self.meet(operation)
        if operation.call == "lock" and self.locks == "unsupported":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        if operation.call == "open to write" and "/locks/" in operation.path:
            self.opened += 1
            if self.opened % 3 == 0 and "stale" in self.locks:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
