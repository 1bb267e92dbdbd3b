"""Readers of records, plans and packs meet bytes that nobody meant: a value or an error of planfreeze, soon and small.

tools/fuzz_readers.py feeds the same readers for as long as one likes.
"""

import random
import runpy
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planfreeze.cache.refs import get_ref
from planfreeze.cache.store import Store
from planfreeze.decoding import decode_msgpack
from planfreeze.errors import DamagedEntry, PlanfreezeError
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.record import ProgramRecord

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "tools" / "fuzz_readers.py"))
READERS = TOOL["readers"]()
CHECK = TOOL["check"]
QUICK = settings(
    max_examples=1000, deadline=2000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def mutations(draw: st.DrawFn, whole: bytes) -> bytes:
    """Whole bytes with some parts flipped, cut out, doubled, or taken from elsewhere."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 16)))
        data[start:end] = draw(st.one_of(st.binary(max_size=16), st.just(bytes(data[start:end]) * 2), st.just(b"")))
    return bytes(data)


@pytest.mark.parametrize("name", READERS)
def test_whole_bytes_are_taken(name: str) -> None:
    read, whole = READERS[name]
    assert CHECK(read, whole + b"") or whole[-1] & 1


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_end_in_a_value_or_an_error_of_planfreeze(name: str) -> None:
    read, whole = READERS[name]
    taken = []

    @QUICK
    @given(st.one_of(st.binary(max_size=400), mutations(whole), st.binary(max_size=60).map(lambda end: end + b"\1")))
    def feed(data: bytes) -> None:
        taken.append(CHECK(read, data))

    feed()
    assert len(taken) >= 500


def test_variations_reach_values_that_are_taken_and_values_that_are_not() -> None:
    """The tool's own variations are not all refused at the first look."""
    for name in ("record", "plan"):
        read, _ = READERS[name]
        taken = [CHECK(read, random.Random(seed).randbytes(8) + b"\1") for seed in range(3000)]
        assert 0 < sum(taken) < 3000, name


DECODERS = {"record": ProgramRecord.decode, "plan": FrozenPlan.decode}
ITEMS = 100_000
MOST_PER_BYTE = 96  # an empty map is one byte, and 64 as an object, in a list of 8-byte places
BOMBS = {
    "an array of 2^32 items": b"\xdd\xff\xff\xff\xff",
    "a map of 2^32 items": b"\xdf\xff\xff\xff\xff",
    "text of 4 GiB": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 GiB": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GiB": b"\xc9\xff\xff\xff\xff\x01",
    "a thousand arrays in each other, each as large as all that follows": (
        b"".join(b"\xdd" + ITEMS.to_bytes(4) for _ in range(1000)) + b"\0" * ITEMS
    ),
    "arrays without end": b"\x91" * 100_000,
    "a million empty arrays": b"\xdd\x00\x0f\x42\x40" + b"\x90" * 1_000_000,
    "a million empty maps": b"\xdd\x00\x0f\x42\x40" + b"\x80" * 1_000_000,
    "a nested format": b"\x92" + b"\x91" * 1000 + b"\x90\x90",
    "a nested field": b"\x9c" + b"\x91" * 900 + b"\x90",
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_what_declares_more_than_it_holds_costs_no_more_than_it_holds(name: str, bomb: str) -> None:
    data = BOMBS[bomb]
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(PlanfreezeError):
            DECODERS[name](data)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + MOST_PER_BYTE * len(data)
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 5


def test_a_decoder_that_believes_lengths_would_fail_that_test() -> None:
    import msgpack

    data = BOMBS["a thousand arrays in each other, each as large as all that follows"]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="incomplete"):
            msgpack.unpackb(data, use_list=False)
        assert tracemalloc.get_traced_memory()[1] > 100 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"\x01\x02", b"\xc1", b"\x81\x90\x01", b"\xa1\xff"])
def test_bytes_that_are_not_one_value_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_msgpack(data)


@given(st.binary(max_size=80))
@settings(QUICK, max_examples=300)
def test_a_reference_of_any_bytes_is_a_digest_or_damage(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "references"
    store = Store.open(path, writable=True)
    store.layout.entry("ref", "name").write_bytes(data)
    with pytest.raises(DamagedEntry):
        get_ref(store.layout, "name")
