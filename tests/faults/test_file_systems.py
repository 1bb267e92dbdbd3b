"""Any file system: real kernels are built, repaired and resolved on mounts, overlays, links and full disks."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import StoreUnusable

from .users import BUILD, RESOLVE, as_root


@as_root
def test_a_store_and_temporary_files_may_lie_where_nothing_can_be_executed(mount, run, root_of: str) -> None:
    place = mount("-t", "tmpfs", "-o", "noexec,nosuid,nodev", "tmpfs")
    (place / "tmp").mkdir()
    assert run(BUILD, place / "store", TMPDIR=str(place / "tmp")) == [2, [root_of], []]
    assert run(RESOLVE, place / "store", TMPDIR=str(place / "tmp")) == [2, [root_of], 0]


@as_root
def test_a_store_in_the_lower_layer_of_an_overlay_is_read_repaired_and_added_to(
    built, toys, toolchains: Path, mount, root_of: str, run
) -> None:
    layers = mount("-t", "tmpfs", "tmpfs")
    baked = built.copy(layers / "lower" / "store")
    damaged = baked.layout.entry("record", built.keyed[0].key.digest)
    damaged.write_bytes(b"damaged in the image")
    before = {path: path.read_bytes() for path in baked.path.rglob("*") if path.is_file()}
    for name in ("upper", "work"):
        (layers / name).mkdir()
    options = ",".join(f"{name}dir={layers / name}" for name in ("lower", "upper", "work"))
    place = mount("-t", "overlay", "-o", options, "overlay") / "store"
    store = Store.open(place, writable=True)
    plan = toys.plan(*built.plan.payloads, toys.families.AddPayload(block=32))
    report = build_plans([plan], store, jobs=1, toolchains=toolchains)
    assert [outcome.status for outcome in report.outcomes] == ["compiled", "reused", "compiled"]
    assert len(list(store.layout.quarantine.iterdir())) == 2, "what was damaged, and the reason"
    assert build_plans([built.plan], store, jobs=1, toolchains=toolchains).count("reused") == 2
    assert run(RESOLVE, place) == [2, [root_of], 0]
    assert {path: path.read_bytes() for path in before} == before, "the lower layer is as it was"


@as_root
def test_a_link_to_another_file_system_may_be_turned_while_the_store_is_open(
    built, toys, toolchains: Path, mount, open_place: Path
) -> None:
    place = mount("-t", "tmpfs", "tmpfs")
    link = open_place / "link"
    link.symlink_to(place / "store")
    (place / "store").mkdir()
    store = Store.open(link, writable=True)
    assert build_plans([built.plan], store, jobs=1, toolchains=toolchains).count("compiled") == 2
    opened = Store.open(link)
    link.unlink()
    link.symlink_to(open_place / "elsewhere")
    (open_place / "elsewhere").mkdir()
    for entry in opened.entries("blob"):
        assert opened.get_blob(entry.name)
    assert len(list(opened.entries("record"))) == 2
    assert list((open_place / "elsewhere").iterdir()) == []


@as_root
@pytest.mark.parametrize(
    ("limit", "more"),
    [("size=1m", "size=9m"), ("size=9m,nr_inodes=120", "size=9m,nr_inodes=9999")],
    ids=["bytes", "inodes"],
)
def test_a_full_disk_is_named_with_store_key_and_size_and_more_room_finishes_the_build(
    shop, mount, limit: str, more: str
) -> None:
    place = mount("-t", "tmpfs", "-o", limit, "tmpfs")
    many = shop.many(60)
    with pytest.raises(StoreUnusable) as caught:
        many.build(place / "store")
    assert caught.value.exit_code == 6
    message = str(caught.value)
    assert os.strerror(errno.ENOSPC) in message and f"store {place / 'store'}" in message
    assert any(f"key {key}" in message for key in many.keys)
    assert caught.value.needed_bytes > 100 and f"{caught.value.needed_bytes} bytes needed" in message
    many.check_entries(place / "store")
    assert list((place / "store" / "tmp").iterdir()) == []
    stored = [key for key in many.keys if Store.open(place / "store").has_record(key)]
    assert 0 < len(stored) < 60
    subprocess.run(["mount", "-o", f"remount,{more}", str(place)], check=True)
    assert len(many.build_whole(place / "store")) == 60 - len(stored)


def test_a_program_takes_three_files_and_what_it_shares_is_bounded(shop, disk, place: Path) -> None:
    many = shop.many(300)
    with disk.Disk(root=place).mounted():
        many.build_whole(place / "store")
    files = [path.relative_to(place / "store") for path in (place / "store").rglob("*") if path.is_file()]
    of_programs = [path for path in files if path.parts[0] in ("objects", "records", "notes")]
    assert len(of_programs) == 3 * 300
    assert len(files) - len(of_programs) <= 4 + 2 * 256, (
        "format, tag, plan, name; a lock and its holder for each stripe"
    )
