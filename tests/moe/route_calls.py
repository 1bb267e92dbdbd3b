"""Calls of route_plan: their ids and buffers, and the machine that runs the compiled kernel over them."""

import numpy as np
import torch

from planfreeze.family import CuteSource
from planfreeze.kernels.moe.reference_routes import plan_routes
from planfreeze.kernels.moe.route_plan import RoutePlanPayload, route_plan
from planfreeze.kernels.moe.routing import COUNTER_START, max_m_tiles
from planfreeze.target import target

POISON = 0x7FC1
OUTPUTS = ("token_map", "row_weight", "tile_expert", "tile_valid", "tile_count")


ARITHMETIC = {
    "abs": lambda a: np.abs(a.astype(np.uint32).view(np.int32)),
    "div": lambda a, b: a // b,
    "popc": lambda a: sum(a >> np.uint64(i) & np.uint64(1) for i in range(32)),
    "dp4a": lambda a, b, total: total + sum(byte(a, i) * byte(b, i) for i in range(4)),
}
"""What the machine does not know of integer instructions; their types are checked."""


def byte(words, i):
    return words >> np.uint64(8 * i) & np.uint64(255)


def counting(ptx_machine, *, is_reversed):
    """Return a block of the machine with the instructions of this kernel; reversed, its last warp goes first."""

    class Block(ptx_machine.Block):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            if is_reversed:
                self.registers["%tid.x"] = self.registers["%tid.x"].reshape(-1, 32)[::-1].flatten()

        def execute(self, instruction, active):
            op, args = instruction.op, instruction.operands
            if op[0] == "red":
                self.count(op, args, active)
            elif op[0] in ("match", "vote"):
                self.vote(op, args, active)
            elif op[0] in ARITHMETIC:
                assert ".".join(op) in ("abs.s32", "div.u32", "popc.b32", "dp4a.u32.u32"), instruction.text
                made = ARITHMETIC[op[0]](*(self.value(name, 32) for name in args[1:]))
                self.set(args[0], made, active, 32)
            else:
                super().execute(instruction, active)

        def count(self, op, args, active) -> None:
            assert op[1:] == ["shared", "add", "u32"]
            places = self.address(args[0], 4, active, is_shared=True)
            words = self.shared[: len(self.shared) // 4 * 4].view(np.uint32)
            np.add.at(words, places // 4, np.uint32(int(args[1])))

        def vote(self, op, args, active) -> None:
            by_warp = active.reshape(-1, 32)
            assert (by_warp.all(1) == by_warp.any(1)).all() and int(args[2], 0) & 0xFFFFFFFF == 0xFFFFFFFF
            if op[0] == "match":
                words = self.value(args[1], 32).reshape(-1, 32)
                is_set = words[:, :, None] == words[:, None, :]
            else:
                holds = self.value(args[1], 1).reshape(-1, 32).astype(bool)
                is_set = np.broadcast_to(holds[:, None, :], (len(holds), 32, 32))
            lanes = (is_set << np.arange(32, dtype=np.uint64)).sum(-1, dtype=np.uint64)
            self.set(args[0], lanes.flatten(), active, 32)

    return Block


class Call:
    """One call of the compiled kernel and what it wrote."""

    def __init__(self, ids, *, experts, tile_m, id_bits=32, top_k=1, arch="sm_90a", hidden=264) -> None:
        self.experts, self.arch, self.tile_m, self.hidden = experts, arch, tile_m, hidden
        self.ids = torch.as_tensor(ids, dtype=torch.int32 if id_bits == 32 else torch.int64)
        self.pairs = len(self.ids)
        self.weights = torch.rand(self.pairs, generator=torch.Generator().manual_seed(3)) + 0.5
        payload = RoutePlanPayload(experts=experts, top_k=top_k, tile_m=tile_m, id_bits=id_bits)
        self.definition = route_plan.define(payload, target(arch))
        self.m_tiles = max_m_tiles(self.pairs, experts=experts, tile_m=tile_m) + 2
        self.rows = tile_m * self.m_tiles

    def run(self, monkeypatch, ptx_machine, compile_cute, *, grid=None, is_serial=False, is_reversed=False):
        source = self.definition.source
        assert isinstance(source, CuteSource)
        scalars = {"pairs": self.pairs, "hidden": self.hidden, "rows": self.rows, "m_tiles": self.m_tiles}
        memory = ptx_machine.Memory()
        buffers = {"topk_ids": self.ids.numpy(), "topk_weights": self.weights.numpy()}
        for argument in self.definition.arguments[2:8]:
            dtype = {"i32": np.int32, "f32": np.float32, "bf16": np.int16}[argument.dtype]
            buffers[argument.name] = np.full(argument.elements(scalars), POISON).astype(dtype)
        addresses = {name: memory.put(values) for name, values in buffers.items()}
        kernel = ptx_machine.Kernel(compile_cute(source, self.arch, len(buffers), len(scalars)).ptx)
        with monkeypatch.context() as patch:
            patch.setattr(ptx_machine, "Block", counting(ptx_machine, is_reversed=is_reversed))
            kernel.run(
                memory,
                [*addresses.values(), *scalars.values()],
                grid=grid or self.definition.grid(scalars, 7)[0],
                block=source.launch.block[0],
                shared_bytes=source.launch.shared_bytes,
                is_serial=is_serial,
            )
        return {name: memory.get(addresses[name], buffers[name]) for name in (*OUTPUTS, "route_output")}

    def check(self, found):
        """Compare with the reference; beyond live tiles, and in rows of valid pairs, nothing was written."""
        expected = plan_routes(self.ids[:, None], self.weights[:, None], self.experts, self.tile_m, self.pairs)
        tiles = int(expected.tile_count[0])
        # Live tiles, then counters at their start; those of other tiles are left alone.
        counted = [tiles, COUNTER_START, 0] + [COUNTER_START] * tiles
        assert found["tile_count"].tolist() == counted + [POISON] * (self.m_tiles - tiles)
        for name, live in zip(OUTPUTS[:4], (tiles * self.tile_m, tiles * self.tile_m, tiles, tiles), strict=False):
            wanted = getattr(expected, name)[:live].numpy()
            np.testing.assert_array_equal(found[name][:live], wanted, err_msg=name)
            assert (found[name][live:] == POISON).all(), name
        routes = found["route_output"].reshape(self.pairs, self.hidden)
        is_valid = ((self.ids >= 0) & (self.ids < self.experts)).numpy()
        assert (routes[is_valid] == POISON).all() and (routes[~is_valid] == 0).all()


def random_ids(pairs, experts, seed=0, invalid=0.1):
    """Skewed ids: some experts get many pairs and some none; a share is out of range on either side."""
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.rand(pairs, generator=generator) ** 3 * experts).long()
    is_invalid = torch.rand(pairs, generator=generator) < invalid
    bad = torch.tensor([-1, experts, -(2**31), 2**31 - 1])[torch.randint(0, 4, (pairs,), generator=generator)]
    return torch.where(is_invalid, bad, ids)
