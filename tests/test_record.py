"""Records: canonical bytes that decode to what was encoded, or are refused."""

import msgpack
import pytest
from msgspec.structs import replace

from planfreeze.errors import DamagedRecord
from planfreeze.family import LaunchInfo
from planfreeze.record import RECORD_FORMAT, ProgramRecord

RECORD = ProgramRecord(
    family="toys.families:add",
    arch="sm_90a",
    blob="ab" * 32,
    symbol="add_kernel",
    payload=b"\x92\xa8toys_add\x91\x92\xa5block@",
    launch=LaunchInfo(
        block=(128, 1, 1), cluster=(2, 1, 1), shared_bytes=1024, carveout_percent=100, is_programmatic=True
    ),
    parameter_bytes=(8, 8, 4),
    registers=32,
    stack_bytes=0,
    static_shared_bytes=1024,
    companions=(("launcher.so", "cd" * 32),),
)
GOLDEN = bytes.fromhex(
    "92029b92a666616d696c79b1746f79732e66616d696c6965733a61646492a461726368a6736d5f39306192a4626c6f62"
    "d94061626162616261626162616261626162616261626162616261626162616261626162616261626162616261626162"
    "61626162616261626162616261626162616292a673796d626f6caa6164645f6b65726e656c92a77061796c6f6164c413"
    "92a8746f79735f6164649192a5626c6f636b4092a66c61756e63689792a5626c6f636b93cc80010192a7636c75737465"
    "729302010192ac7368617265645f6279746573cd040092aa6d696e5f626c6f636b730192b063617276656f75745f7065"
    "7263656e746492ae69735f636f6f7065726174697665c292af69735f70726f6772616d6d61746963c392af706172616d"
    "657465725f62797465739308080492a97265676973746572732092ab737461636b5f62797465730092b3737461746963"
    "5f7368617265645f6279746573cd040092aa636f6d70616e696f6e739192ab6c61756e636865722e736fd94063646364"
    "636463646364636463646364636463646364636463646364636463646364636463646364636463646364636463646364"
    "636463646364636463646364"
)
STATED = [[name, value] for name, value in msgpack.unpackb(GOLDEN)[1]]


def pack(stated, record_format=RECORD_FORMAT):
    return msgpack.packb([record_format, stated])


def change(name, value):
    """The golden record with another value for one field of the record, or of its launch facts after a dot."""
    outer, _, inner = name.partition(".")
    changed = [[key, value] if key == outer and not inner else [key, old] for key, old in STATED]
    if inner:
        launch = [[key, value if key == inner else old] for key, old in dict(STATED)["launch"]]
        changed = [[key, launch if key == "launch" else old] for key, old in STATED]
    return pack(changed)


def test_encoding_is_golden_and_decodes_to_the_same_record():
    assert RECORD.encode() == GOLDEN
    assert ProgramRecord.decode(GOLDEN) == RECORD


def test_record_without_a_carveout_comes_back():
    record = replace(RECORD, launch=LaunchInfo(block=(1, 1, 1)))
    assert ProgramRecord.decode(record.encode()) == record


@pytest.mark.parametrize("name", ProgramRecord.__struct_fields__)
def test_every_field_is_in_the_encoding(name):
    value = getattr(RECORD, name)
    changed = {
        str: lambda: value + "x",
        bytes: lambda: value + b"x",
        int: lambda: value + 1,
        tuple: lambda: (*value, 4),
        LaunchInfo: lambda: replace(value, min_blocks=2),
    }[type(value)]()
    assert replace(RECORD, **{name: changed}).encode() != GOLDEN


def test_every_truncation_is_refused():
    for size in range(len(GOLDEN)):
        with pytest.raises(DamagedRecord) as raised:
            ProgramRecord.decode(GOLDEN[:size])
        assert raised.value.exit_code == 4


def test_any_changed_byte_is_refused_or_gives_another_record_that_encodes_alike():
    others = 0
    for place in range(len(GOLDEN)):
        for value in range(256):
            data = GOLDEN[:place] + bytes([value]) + GOLDEN[place + 1 :]
            try:
                record = ProgramRecord.decode(data)
            except DamagedRecord:
                continue
            assert record.encode() == data
            assert (record == RECORD) == (data == GOLDEN)
            others += record != RECORD
    assert others > 0, "text and numbers are free"


DAMAGED = {
    "empty": b"",
    "no list": msgpack.packb(5),
    "nothing": msgpack.packb(None),
    "a map": msgpack.packb({"format": 1}),
    "trailing bytes": GOLDEN + b"\0",
    "two records": GOLDEN * 2,
    "another format": pack(STATED, RECORD_FORMAT + 1),
    "format True": pack(STATED, True),
    "no fields": pack([]),
    "a field less": pack(STATED[1:]),
    "a field more": pack([*STATED, ["later", 1]]),
    "a field twice": pack([*STATED, STATED[0]]),
    "another order": pack(STATED[::-1]),
    "fields as a map": msgpack.packb([1, dict(STATED)]),
    "a field without a value": pack([["family"], *STATED[1:]]),
    "a longer form of the same": GOLDEN[:1] + b"\xcc\x01" + GOLDEN[2:],
    "deeply nested": pack([["family", []], *STATED[1:]])[:12] + b"\x91" * 2000 + b"\x90",
    "fields nested too deep to pack": change("family", None).replace(b"\xc0", b"\x91" * 600 + b"\x90", 1),
    **{
        f"{name} = {value!r}": change(name, value)
        for name, values in {
            "family": [None, 1, b"a", ["a"]],
            "arch": [None, 90],
            "blob": [None, b"\xab" * 32],
            "symbol": [None, True],
            "payload": ["text", None, []],
            "launch": [None, [], 5, "launch", [["block", [1, 1, 1]], ["later", 1]], {"block": [1, 1, 1]}],
            "launch.block": [None, 32, [32], [32, 1], [32, 1, 1, 1], [32, 1, None], "abc", [True, 1, 1], [-1, 1, 1]],
            "launch.cluster": [None, [], [1, 1, 1.0]],
            "launch.shared_bytes": [None, -1, 1.5, "8", False],
            "launch.min_blocks": [None, "1"],
            "launch.carveout_percent": ["100", True, -1],
            "launch.is_cooperative": [0, 1, None],
            "launch.is_programmatic": [1, "yes"],
            "parameter_bytes": [None, 8, "888", [8, None], [8, -8], {"8": 8}],
            "registers": [None, -1, 32.0, "32"],
            "stack_bytes": [None, False],
            "static_shared_bytes": [None, [0]],
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_bytes_that_are_no_record_are_refused(damage):
    with pytest.raises(DamagedRecord):
        ProgramRecord.decode(DAMAGED[damage])


def test_record_of_a_build_says_what_its_cubin_says(built):
    add, copy = (outcome.record for outcome in built.report.outcomes)
    assert (add.family, add.arch, add.symbol) == ("toys.families:add", "sm_90a", "add_kernel")
    assert add.parameter_bytes == (8, 8, 4, 8, 8), "Triton adds two addresses of scratch buffers"
    assert copy.parameter_bytes == (8, 8, 4)
    assert (add.launch.block, copy.launch.block) == ((32, 1, 1), (32, 1, 1))
    for record, payload in ((add, built.plan.payloads[0]), (copy, built.plan.payloads[1])):
        assert record.payload == payload.encode()
        assert record.registers > 0 and record.stack_bytes == 0
