"""Lane by lane execution of the sm_90a kernels of the direct-route projections, in Python.

The functions of a kernel are executed as they stand, by all threads of a block, over the few instructions of ``ptx``
written out here after the PTX ISA: mbarriers, bulk copies that land late and in any order over poisoned memory,
warpgroup products with their fragment and descriptor layouts. Index errors, missing waits and deadlocks of the pipeline
show here, without a device.

Threads are greenlets: one runs at a time, until it waits or loses its turn at an access to memory. Who is next is drawn
with the seed of the block.
"""

import contextlib
import importlib
import inspect
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from planfreeze.kernels.mma import launch, scales_ahead_sm_90a, scales_sm_90a, sm_90a, tasks

from .lane_turns import Mbarrier, Meeting, Turns, here

SHARED_BASE = 1024

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()


def wrap(value, kind):
    """Convert an integer to a fixed width, dropping the upper bits."""
    bits = int(value) & ((1 << (8 * np.dtype(kind).itemsize)) - 1)
    return np.array(bits, dtype=f"u{np.dtype(kind).itemsize}").view(kind)[()]


def gather_rows(fragments):
    """Return the 64 by 32 operand of a warpgroup out of the four registers of each of its threads."""
    codes = np.array(fragments, dtype=np.uint32).view(np.uint8).reshape(128, 4, 4)
    thread = np.arange(128)
    first, k = 16 * (thread // 32) + thread % 32 // 4, 4 * (thread % 4)
    rows = np.empty((64, 32))
    for register, (row, column) in enumerate(((0, 0), (8, 0), (0, 16), (8, 16))):
        rows[(first + row)[:, None], (column + k)[:, None] + np.arange(4)] = E4M3[codes[:, register]]
    return rows


class Group:
    """One wgmma group: fragments captured when it starts, shared memory read when it is waited for."""

    def __init__(self, lanes):
        self.lanes, self.results = lanes, None

    def result(self, shared, thread):
        if self.results is None:
            self.results = [self.multiply(shared, b) for b in range(len(self.lanes[0][0]))]
        quad, c = thread % 32 // 4, thread % 4
        row = 16 * (thread // 32) + quad
        corners = ((row, 2 * c), (row, 2 * c + 1), (row + 8, 2 * c), (row + 8, 2 * c + 1))
        return [[np.float32(product[corner]) for corner in corners] for product in self.results]

    def multiply(self, shared, b):
        descriptors = {int(descriptor) for _, descriptor in self.lanes}
        assert len(descriptors) == 1 and len(self.lanes) == 128
        (descriptor,) = descriptors
        assert descriptor >> 62 == 0, "no swizzle"
        start, leading = (descriptor & 0x3FFF) << 4, (descriptor >> 16 & 0x3FFF) << 4
        n, k = np.meshgrid(np.arange(8), np.arange(32), indexing="ij")
        tokens = E4M3[shared[start + k // 16 * leading + n * 16 + k % 16]]
        rows = gather_rows([fragments[b] for fragments, _ in self.lanes])
        return (rows[:, None] * tokens[None]).sum(-1)


class Block:
    """One thread block: its shared memory, barriers and copy engine, and the instructions over them."""

    late_bytes = None
    late_tensors = ()

    def __init__(self, memory, launch, seed):
        self.memory, self.threads = memory, launch.block[0]
        self.shared = np.full(SHARED_BASE + launch.shared_bytes, 0xFF, dtype=np.uint8)
        self.turns, self.barriers = Turns(seed), {}
        self.warps = [Meeting(self.turns, 32) for _ in range(self.threads // 32)]
        self.warpgroups = [Meeting(self.turns, 128) for _ in range(self.threads // 128)]
        self.block = Meeting(self.turns, self.threads)
        for address, data in self.late_tensors:
            memory[address : address + data.size] = 0xFF

    def run(self, body):
        def run_thread(thread):
            here.thread, here.is_elected = thread, True
            with np.errstate(all="ignore"):
                body()

        self.turns.run([partial(run_thread, thread) for thread in range(self.threads)], self.land)

    def land(self, shared, data, barrier):
        self.shared[shared : shared + data.size] = data
        self.barriers[barrier].update(size_bytes=-data.size)

    def exchange(self, value=None):
        return self.warps[here.thread // 32].exchange(here.thread % 32, value)

    @contextlib.contextmanager
    def elect_one(self):
        # elect.sync is where the lanes of a warp wait for each other: none is left behind at a barrier.
        self.exchange()
        here.is_elected = here.thread % 32 == 0
        yield
        here.is_elected = True

    def read(self, space, address, kind, count):
        size = np.dtype(kind).itemsize * count
        address = int(address)
        assert address >= 0 and address + size <= space.size and address % size == 0
        self.turns.stumble()
        return tuple(space[address : address + size].view(kind))

    def write(self, space, address, values):
        data = np.array(values).view(np.uint8)
        address = int(address)
        assert address >= 0 and address + data.size <= space.size and address % data.size == 0
        self.turns.stumble()
        space[address : address + data.size] = data

    def copy_bulk(self, shared, source, size_bytes, barrier):
        if here.is_elected:
            shared, source, size_bytes = int(shared), int(source), int(size_bytes)
            assert shared % 16 == source % 16 == size_bytes % 16 == 0
            assert source >= 0 and source + size_bytes <= self.memory.size
            self.shared[shared : shared + size_bytes] = 0xFF
            self.turns.copies.append((shared, self.memory[source : source + size_bytes].copy(), int(barrier)))

    def arrive(self, barrier, size_bytes=0):
        if here.is_elected:
            self.be_late(size_bytes)
            self.barriers[int(barrier)].update(arrivals=1, size_bytes=int(size_bytes))

    def expect(self, barrier, size_bytes):
        if here.is_elected:
            self.be_late(size_bytes)
            self.barriers[int(barrier)].update(size_bytes=int(size_bytes))

    def be_late(self, size_bytes):
        """Let all others go on as far as they can before bytes are expected that are to be expected late."""
        if int(size_bytes) == self.late_bytes:
            self.turns.wait_for_others()

    def wait_for_launch(self):
        """Wait for the launch before this one, which makes the late tensors."""
        self.turns.wait_for_others()
        for address, data in self.late_tensors:
            self.memory[address : address + data.size] = data

    def start_products(self, fragments, descriptor):
        lanes = self.meet((fragments, descriptor))
        # One group object per start: the first lane makes it.
        return self.meet(Group(lanes) if here.thread == 0 else None)[0]

    def finish_products(self, products, pending):
        self.meet()
        return products.result(self.shared, here.thread)

    def meet(self, value=None):
        """Exchange values with the other threads of the warpgroup."""
        return self.warpgroups[here.thread // 128].exchange(here.thread % 128, value)

    def instructions(self):
        """The layer ``ptx``, over this block."""
        return SimpleNamespace(
            init_barrier=lambda barrier, arrivals: self.barriers.setdefault(
                int(barrier), Mbarrier(self.turns, arrivals)
            ),
            arrive=self.arrive,
            arrive_expecting=self.arrive,
            expect=self.expect,
            wait=lambda barrier, parity: self.barriers[int(barrier)].wait(int(parity)),
            copy_bulk=self.copy_bulk,
            read_thread=lambda: np.int32(here.thread),
            load_shared=lambda address: self.read(self.shared, address, np.uint32, 1)[0],
            load_shared_half=lambda address: np.uint32(self.read(self.shared, address, np.uint16, 1)[0]),
            load_shared_x4=lambda address: self.read(self.shared, address, np.uint32, 4),
            load_shared_f32x4=lambda address: self.read(self.shared, address, np.float32, 4),
            store_shared_f32=lambda address, value: self.write(self.shared, address, [value]),
            store_shared_f32x4=lambda address, values: self.write(self.shared, address, values),
            load_global_i32=lambda address: self.read(self.memory, address, np.int32, 1)[0],
            load_global_i64=lambda address: self.read(self.memory, address, np.int64, 1)[0],
            load_global_f32=lambda address: self.read(self.memory, address, np.float32, 1)[0],
            load_global_x4=lambda address: self.read(self.memory, address, np.uint32, 4),
            store_global_bf16=lambda address, value: self.write(
                self.memory, address, torch.tensor([value]).to(torch.bfloat16).view(torch.int16).numpy()
            ),
            store_global_f32=lambda address, value: self.write(self.memory, address, [np.float32(value)]),
            select_by_bits=lambda choices, word: [
                np.array(choices[i // 4][int(word) >> i & 1], dtype=np.uint32).view(np.float32)[()] for i in range(16)
            ],
            float_of_bits=lambda word: np.array(word, dtype=np.uint32).view(np.float32)[()],
            mul_rn=lambda a, b: np.float32(a) * np.float32(b),
            fma_rn=lambda a, b, c: np.float32(np.float64(a) * np.float64(b) + np.float64(c)),
            start_products=self.start_products,
            finish_products=self.finish_products,
        )

    def language(self, index, blocks):
        """The parts of CuTe DSL the kernel uses."""
        arch = SimpleNamespace(
            thread_idx=lambda: (np.int32(here.thread), 0, 0),
            block_idx=lambda: (np.int32(index), 0, 0),
            grid_dim=lambda: (np.int32(blocks), 1, 1),
            get_dyn_smem=lambda kind, alignment: SimpleNamespace(toint=lambda: SHARED_BASE),
            mbarrier_init_fence=lambda: None,
            sync_threads=lambda: self.block.exchange(here.thread),
            sync_warp=self.exchange,
            make_warp_uniform=np.int32,
            setmaxregister_decrease=lambda count: None,
            setmaxregister_increase=lambda count: None,
            elect_one=self.elect_one,
            shuffle_sync=lambda value, lane: self.exchange(value)[int(lane)],
            vote_any_sync=lambda holds: any(self.exchange(bool(holds))),
            vote_ballot_sync=lambda holds: sum(bit << lane for lane, bit in enumerate(self.exchange(bool(holds)))),
            griddepcontrol_wait=self.wait_for_launch,
            griddepcontrol_launch_dependents=lambda: None,
        )
        return SimpleNamespace(arch=arch, make_rmem_tensor=lambda shape, kind: [None] * shape[0])


def place(parts):
    """Lay tensors out in one memory, 16-byte aligned and poison between them; return it with the addresses."""
    memory, addresses = [np.full(256, 0xFF, dtype=np.uint8)], []
    for part in parts:
        data = np.ascontiguousarray(part).view(np.uint8).ravel()
        addresses.append(sum(piece.size for piece in memory))
        memory += [data, np.full(16 - data.size % 16 + 256, 0xFF, dtype=np.uint8)]
    return np.concatenate(memory), addresses


def run(source, blocks, tensors, scalars, *, is_reversed=False, late_bytes=None, late_tensors=0):
    """Run the kernel of a source over tensors; return the last of them as the kernel left it.

    Blocks run one after the other, the last one first if ``is_reversed``. Wherever ``late_bytes`` bytes are expected,
    that happens as late as it can. The first ``late_tensors`` tensors are poison until the block has waited for the
    launch before this one.
    """
    memory, addresses = place(tensors)
    made = zip(addresses[:late_tensors], tensors[:late_tensors], strict=True)
    late = [(address, memory[address : address + tensor.nbytes].copy()) for address, tensor in made]
    parameters = (*(np.int64(address) for address in addresses), *(np.int32(value) for value in scalars))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "late_bytes", late_bytes)
        patch.setattr(Block, "late_tensors", late)
        run_blocks(patch, source, blocks, memory, parameters, is_reversed=is_reversed)
    output = tensors[-1]
    return memory[addresses[-1] : addresses[-1] + output.nbytes].view(output.dtype).reshape(output.shape)


def run_blocks(monkeypatch, source, blocks, memory, parameters, *, is_reversed=False):
    """Run all blocks, one after the other, over global memory."""
    module_name, _, kernel_name = source.kernel.partition(":")
    kernel_module = importlib.import_module(module_name)
    modules = (kernel_module, launch, sm_90a, scales_sm_90a, scales_ahead_sm_90a, tasks)
    kinds = {"Int32": np.int32, "Int64": np.int64, "Uint32": np.uint32}
    dsl = SimpleNamespace(
        range=lambda *bounds, unroll: range(*(int(bound) for bound in bounds)),
        range_constexpr=range,
        const_expr=bool,
        min=min,
        Uint8=None,
    )
    for module in modules:
        for name, kind in kinds.items():
            monkeypatch.setattr(module, name, lambda value, kind=kind: wrap(value, kind), raising=False)
        monkeypatch.setattr(module, "Float32", np.float32, raising=False)
        monkeypatch.setattr(module, "cutlass", dsl, raising=False)
        # What the DSL would trace runs as written.
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value):
                monkeypatch.setattr(module, name, inspect.unwrap(value))
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                for method, function in list(vars(value).items()):
                    if inspect.isfunction(function) and method != "__init__":
                        monkeypatch.setattr(value, method, inspect.unwrap(function))
    for index in sorted(range(blocks), reverse=is_reversed):
        kernel = getattr(kernel_module, kernel_name)(launch=source.launch, **dict(source.constants))
        block = Block(memory, source.launch, seed=index)
        monkeypatch.setattr(scales_ahead_sm_90a, "select", lambda condition, a, b: a if condition else b)
        monkeypatch.setattr(scales_ahead_sm_90a, "fence_async", lambda: None)
        for module in modules:
            monkeypatch.setattr(module, "ptx", block.instructions(), raising=False)
            monkeypatch.setattr(module, "cute", block.language(index, blocks), raising=False)
        block.run(lambda kernel=kernel: kernel.kernel(parameters))
