"""Builds over damage: what is damaged, missing or another program's is compiled again."""

import pytest
from msgspec.structs import replace

from planfreeze.cache.digest import digest_of

from .conftest import quarantined, statuses


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
