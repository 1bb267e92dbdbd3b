"""Run a kernel of several tokens a tile for sm_90a lane by lane: the machine of the tests of ``micro_fc1``, and more.

More are the instructions of ``tokens_sm_90a``: cp.async that lands as late as its thread allows, the fence that makes
it visible to wgmma (a product that reads what is not fenced is an error), and products with 8, 16 or 32 columns whose
operand has the 128-byte swizzle.
"""

import inspect
from types import SimpleNamespace

import numpy as np
import torch

from planfreeze.kernels.moe import progress_cute
from planfreeze.kernels.moe.routing import COUNTER_START

from . import lane_machine as lanes

here = lanes.here
f32, u32 = np.float32, np.uint32


def bits(value):
    return np.array(value, dtype=f32).view(u32)[()]


def pack_bf16(low, high):
    pair = torch.tensor([low, high], dtype=torch.float32).to(torch.bfloat16)
    return pair.view(torch.int16).numpy().view(u32)[0]


def round_e4m3(*values):
    limited = torch.tensor(np.array(values, dtype=f32)).clamp(-448, 448)
    return limited.to(torch.float8_e4m3fn).view(torch.uint8).numpy().view(u32)[0]


def permute_bytes(a, b, order):
    pool = np.array([a, b], dtype=u32).view(np.uint8)
    return pool[[int(order) >> 4 * i & 7 for i in range(4)]].view(u32)[0]


class Group:
    """One wgmma group: fragments captured when it starts, shared memory read when it is waited for."""

    def __init__(self, lanes_of_group, tokens):
        self.lanes, self.tokens, self.results = lanes_of_group, tokens, None

    def result(self, block, thread):
        if self.results is None:
            self.results = [self.multiply(block, b) for b in range(len(self.lanes[0][0]))]
        row, c = 16 * (thread % 128 // 32) + thread % 32 // 4, thread % 4
        corners = [
            (row + 8 * half, 8 * f + 2 * c + x) for f in range(self.tokens // 8) for half in (0, 1) for x in (0, 1)
        ]
        return [[f32(product[corner]) for corner in corners] for product in self.results]

    def multiply(self, block, b):
        descriptors = {int(descriptor) for _, descriptor in self.lanes}
        assert len(descriptors) == 1 and len(self.lanes) == 128
        (descriptor,) = descriptors
        assert descriptor >> 62 == 1 and descriptor >> 49 & 7 == 0, "128-byte swizzle from an aligned start"
        start, stride = (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
        n, k = np.meshgrid(np.arange(self.tokens), np.arange(32), indexing="ij")
        addresses = start + n // 8 * stride + n % 8 * 128 + k
        addresses ^= (addresses >> 7 & 7) << 4
        assert not block.is_unfenced[addresses].any(), "an activation was copied but not fenced"
        columns = lanes.E4M3[block.shared[addresses]]
        rows = lanes.gather_rows([fragments[b] for fragments, _ in self.lanes])
        with np.errstate(all="ignore"):
            return (rows[:, None] * columns[None]).sum(-1)


class Block(lanes.Block):
    """The machine's block, with cp.async and the products of several tokens."""

    def __init__(self, memory, launch, seed):
        super().__init__(memory, launch, seed)
        self.is_unfenced = np.zeros(self.shared.size, dtype=bool)
        self.open = [[] for _ in range(self.threads)]
        self.groups = [[] for _ in range(self.threads)]
        self.landed = [[] for _ in range(self.threads)]

    def copy_16(self, shared, source, size_bytes, is_live):
        if not is_live:
            return
        shared, source = int(shared), int(source)
        assert int(size_bytes) == 16 and shared % 16 == source % 16 == 0
        assert lanes.SHARED_BASE <= shared <= self.shared.size - 16 and 0 <= source <= self.memory.size - 16
        self.shared[shared : shared + 16] = 0xFF
        self.is_unfenced[shared : shared + 16] = True
        self.open[here.thread].append((shared, self.memory[source : source + 16].copy()))

    def commit_copies(self):
        self.groups[here.thread].append(self.open[here.thread])
        self.open[here.thread] = []

    def wait_copies(self, pending):
        groups = self.groups[here.thread]
        while len(groups) > pending:
            for shared, data in groups.pop(0):
                self.shared[shared : shared + data.size] = data
                self.landed[here.thread].append(slice(shared, shared + data.size))

    def fence_async(self):
        for place in self.landed[here.thread]:
            self.is_unfenced[place] = False
        self.landed[here.thread] = []

    def start_products(self, fragments, descriptor, tokens=8):
        found = self.meet((fragments, descriptor))
        # One group object per start: the first lane makes it.
        return self.meet(Group(found, tokens) if here.thread % 128 == 0 else None)[0]

    def finish_products(self, products, pending):
        self.meet()
        return products.result(self, here.thread)

    def store_shared_x4(self, address, words):
        if here.is_elected:
            self.write(self.shared, address, [u32(word) for word in words])

    def instructions(self):
        made = super().instructions()
        made.load_shared_half = lambda address: u32(self.read(self.shared, address, np.uint16, 1)[0])
        made.add_rn = lambda a, b: f32(a) + f32(b)
        made.negate = lambda a: -f32(a)
        made.min_nan = lambda a, b: np.minimum(f32(a), f32(b))
        made.max_nan = lambda a, b: np.maximum(f32(a), f32(b))
        made.reciprocal = made.reciprocal_approximate = lambda a: f32(1) / f32(a)
        made.power_of_two_approximate = lambda a: f32(np.exp2(np.float64(a)))
        return made

    def wait_for_count(self, address, count):
        (counted,) = self.read(self.memory, address, u32, 1)
        assert u32(counted) - u32(COUNTER_START) >= count, "a wait that never ends"

    def count_round(self, address, last):
        (counted,) = self.read(self.memory, address, u32, 1)
        self.write(self.memory, address, [u32(0) if counted >= last else counted + u32(1)])
        return counted

    def consumer_barrier(self, warpgroup):
        assert warpgroup == here.thread // 128
        self.meet()

    def add_both(self, first, second):
        for address in (int(first), int(second)):
            self.memory[address : address + 4].view(u32)[0] += 1

    def named(self):
        """Instructions that kernels import by name."""
        made = self.instructions()
        return {
            "add_both": self.add_both,
            "count_round": self.count_round,
            "fence_async_global": lambda: None,
            "wait_for_count": self.wait_for_count,
            "load_acquire": lambda address: self.read(self.memory, address, u32, 1)[0],
            "bits_of_float": bits,
            "commit_copies": self.commit_copies,
            "consumer_barrier": self.consumer_barrier,
            "copy_16": self.copy_16,
            "exchange": lambda word, mask: self.exchange(word)[here.thread % 32 ^ mask],
            "fence_async": self.fence_async,
            "float_of_bits": made.float_of_bits,
            "larger": max,
            "load_shared_x2": lambda address: self.read(self.shared, address, u32, 2),
            "mul_rn": made.mul_rn,
            "pack_bf16": pack_bf16,
            "permute_bytes": permute_bytes,
            "round_e4m3": round_e4m3,
            "select": lambda condition, a, b: a if condition else b,
            "store_global_x1": lambda address, word: self.write(self.memory, address, [u32(word)]),
            "store_shared_x4": self.store_shared_x4,
            "wait_copies": self.wait_copies,
        }


def unwrap(monkeypatch, module):
    """Let what the DSL would trace run as written."""
    kinds = {"Int32": np.int32, "Int64": np.int64, "Uint32": np.uint32}
    dsl = SimpleNamespace(
        range=lambda *bounds, unroll: range(*(int(bound) for bound in bounds)),
        range_constexpr=range,
        const_expr=bool,
        min=min,
        Uint8=None,
    )
    for name, kind in kinds.items():
        monkeypatch.setattr(module, name, lambda value, kind=kind: lanes.wrap(value, kind), raising=False)
    monkeypatch.setattr(module, "Float32", np.float32, raising=False)
    monkeypatch.setattr(module, "cutlass", dsl, raising=False)
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) and hasattr(value, "__wrapped__"):
            monkeypatch.setattr(module, name, inspect.unwrap(value))
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for method, function in list(vars(value).items()):
                if inspect.isfunction(function) and method != "__init__":
                    monkeypatch.setattr(value, method, inspect.unwrap(function))


def run_kernel(monkeypatch, modules, kernel, source, blocks, memory, parameters):
    """Run a kernel class over global memory; ``modules`` are all whose functions it executes."""
    modules = (*modules, lanes.launch, progress_cute)
    for module in modules:
        unwrap(monkeypatch, module)
    for index in range(blocks):
        block = Block(memory, source.launch, seed=index)
        named = block.named()
        for module in modules:
            monkeypatch.setattr(module, "ptx", block.instructions(), raising=False)
            monkeypatch.setattr(module, "cute", block.language(index, blocks), raising=False)
            for name in named.keys() & vars(module).keys():
                monkeypatch.setattr(module, name, named[name])
        made = kernel(launch=source.launch, **dict(source.constants))
        block.run(lambda made=made: made.kernel(parameters))
        assert not any(block.open) and not any(block.groups), "copies nobody waited for"
