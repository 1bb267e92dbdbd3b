"""Family csf_presence: rules, and compiled kernels run on the CPU against the torch reference."""

import re

import numpy as np
import pytest

from planfreeze.family import CuteSource, family_of
from planfreeze.kernels.scales.csf_presence import CsfPresencePayload, csf_presence
from planfreeze.target import ARCHS, target

from .slow_warps import POISON, extended


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize(
    ("experts", "id_bits", "ids"),
    [
        (384, 32, [0, 383, 128, 127, 5, 5, -1, 384, 2**31 - 1, -(2**31)]),
        (130, 64, [129, 2**32 + 3, 128 - 2**32, 7, 130, -(2**63), 2**63 - 1]),
        (5, 32, [-1, 5, -5]),
        (1, 64, [0]),
        (300, 32, [(7 * i * i) % 450 - 75 for i in range(9000)]),
        (300, 64, [299] * 1025 + [1]),
        (9, 32, []),
    ],
    ids=["both ends", "low words", "none", "one", "many", "the last of many", "no pairs"],
)
def test_presence_marks_the_routed_experts(monkeypatch, ptx_machine, compile_cute, arch, experts, id_bits, ids):
    found = run_presence(monkeypatch, ptx_machine, compile_cute, ids, experts=experts, id_bits=id_bits, arch=arch)
    np.testing.assert_array_equal(found, np.isin(np.arange(experts), ids))


@pytest.mark.parametrize("reverse", [False, True])
def test_presence_does_not_depend_on_the_order_of_warps(monkeypatch, ptx_machine, compile_cute, reverse):
    # Threads of the tenth warp mark what the first one clears and stores.
    ids = list(range(299, 0, -1))
    found = run_presence(
        monkeypatch, ptx_machine, compile_cute, ids, experts=300, arch="sm_90a", is_serial=True, reverse=reverse
    )
    np.testing.assert_array_equal(found, np.isin(np.arange(300), ids))


def run_presence(monkeypatch, machine, compile_once, ids, *, experts, arch, id_bits=32, is_serial=False, reverse=False):
    """Run the compiled kernel over poisoned flags."""
    definition = csf_presence.define(CsfPresencePayload(experts=experts, id_bits=id_bits), target(arch))
    assert isinstance(definition.source, CuteSource)
    memory = machine.Memory()
    presence = np.full(experts, POISON, np.uint8)
    addresses = [memory.put(np.array(ids, np.int32 if id_bits == 32 else np.int64)), memory.put(presence)]
    launch = definition.source.launch
    kernel = machine.Kernel(compile_once(definition.source, arch, 2, 1).ptx)
    with monkeypatch.context() as patch:
        patch.setattr(machine, "Block", extended(machine, is_reversed=reverse))
        kernel.run(
            memory,
            [*addresses, len(ids)],
            grid=definition.grid({"pairs": len(ids)}, 1)[0],
            block=launch.block[0],
            shared_bytes=launch.shared_bytes,
            is_serial=is_serial,
        )
    return memory.get(addresses[1], presence)


@pytest.mark.parametrize("arch", list(ARCHS))
@pytest.mark.parametrize("id_bits", [32, 64])
def test_presence_holds_its_values_in_registers(compile_cute, cuobjdump, arch, id_bits):
    source = csf_presence.define(CsfPresencePayload(experts=384, id_bits=id_bits), target(arch)).source
    compiled = compile_cute(source, arch, 2, 1)
    assert not re.search(r"\b(LDL|STL)\b", cuobjdump(compiled.cubin, "-sass"))
    usage = re.search(r"REG:(\d+) STACK:(\d+)", cuobjdump(compiled.cubin, "-res-usage"))
    assert usage is not None and int(usage[1]) <= 64 and int(usage[2]) == 0


def test_presence_takes_every_id():
    payload = CsfPresencePayload(experts=384, id_bits=64)
    assert family_of(payload) is csf_presence and csf_presence.version == 1
    definition = csf_presence.define(payload, target("sm_90a"))
    found = [(a.name, a.dtype, a.elements({"pairs": 7}), a.alignment) for a in definition.arguments if a.elements]
    assert found == [("topk_ids", "i64", 7, 8), ("presence", "u8", 384, 1)]
    assert definition.grid({"pairs": 7}, 1) == (3, 1, 1)
