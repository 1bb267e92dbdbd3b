"""The sm_90a kernel of ``micro_fc1``, run lane by lane in Python.

The functions of the kernel are executed as they stand, by 160 threads per block, over the few instructions of ``ptx``
written out here after the PTX ISA: mbarriers, bulk copies that land late and in any order over poisoned memory,
warpgroup products with their fragment and descriptor layouts. Index errors, missing waits and deadlocks of the pipeline
show here, without a device.
"""

import contextlib
import inspect
import random
import threading
from types import SimpleNamespace

import numpy as np
import torch

from planfreeze.kernels.mma import scales_sm_90a, sm_90a
from planfreeze.kernels.moe import micro_fc1_sm_90a_cute
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload, micro_fc1
from planfreeze.kernels.moe.reference import (
    activation_scales,
    arrange_activations,
    dequantise_mxfp4,
    dequantise_mxfp8,
)
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry, row_of_slot
from planfreeze.target import target

PATIENCE_S = 60
SHARED_BASE = 1024
E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
here = threading.local()


def wrap(value, kind):
    """Convert an integer to a fixed width, dropping the upper bits."""
    bits = int(value) & ((1 << (8 * np.dtype(kind).itemsize)) - 1)
    return np.array(bits, dtype=f"u{np.dtype(kind).itemsize}").view(kind)[()]


class Mbarrier:
    """One mbarrier: pending arrivals and bytes of the current phase."""

    def __init__(self, arrivals):
        self.arrivals, self.pending, self.bytes, self.phase = arrivals, arrivals, 0, 0
        self.changed = threading.Condition()

    def update(self, arrivals=0, size_bytes=0):
        with self.changed:
            self.bytes += size_bytes
            self.pending -= arrivals
            assert self.pending >= 0, "more arrivals than the barrier was set up for"
            if self.pending == 0 and self.bytes == 0:
                self.phase, self.pending = self.phase + 1, self.arrivals
                self.changed.notify_all()

    def wait(self, parity):
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase % 2 != parity, PATIENCE_S), "deadlock"


class Meeting:
    """All-to-all exchange of a warp, a warpgroup or a block."""

    def __init__(self, members):
        self.values = [None] * members
        self.barrier = threading.Barrier(members, timeout=PATIENCE_S)

    def exchange(self, index, value=None):
        self.values[index] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


class Group:
    """One wgmma group: fragments captured when it starts, shared memory read when it is waited for."""

    def __init__(self, lanes):
        self.lanes, self.results, self.lock = lanes, None, threading.Lock()

    def result(self, shared, thread):
        with self.lock:
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
        k, n = np.meshgrid(np.arange(32), np.arange(8), indexing="ij")
        tokens = E4M3[shared[start + k // 16 * leading + n * 16 + k % 16]]
        rows = np.full((64, 32), np.nan)
        for thread, (fragments, _) in enumerate(self.lanes):
            first, k = 16 * (thread // 32) + thread % 32 // 4, 4 * (thread % 4)
            for register, (row, column) in enumerate(((0, 0), (8, 0), (0, 16), (8, 16))):
                values = np.array([fragments[b][register]], dtype=np.uint32).view(np.uint8)
                rows[first + row, column + k : column + k + 4] = E4M3[values]
        return np.array([[np.sum(a * tokens[:, n]) for n in range(8)] for a in rows])


class Block:
    """One thread block: its shared memory, barriers and copy engine, and the instructions over them."""

    def __init__(self, memory, shared_bytes, seed):
        self.memory = memory
        self.shared = np.full(SHARED_BASE + shared_bytes, 0xFF, dtype=np.uint8)
        self.barriers, self.copies, self.errors = {}, [], []
        self.warps, self.warpgroup, self.block = [Meeting(32) for _ in range(5)], Meeting(128), Meeting(160)
        self.random, self.issued, self.is_over = random.Random(seed), threading.Condition(), False

    def run(self, body):
        threads = [threading.Thread(target=self.run_thread, args=(body, i), daemon=True) for i in range(160)]
        engine = threading.Thread(target=self.land_copies, daemon=True)
        for thread in (engine, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        self.is_over = True
        engine.join()
        if self.errors:
            raise self.errors[0]
        assert not self.copies

    def run_thread(self, body, thread):
        here.thread, here.is_elected = thread, True
        try:
            with np.errstate(all="ignore"):
                body()
        except BaseException as error:  # noqa: BLE001  # handed to run()
            self.errors.append(error)
            for meeting in (*self.warps, self.warpgroup, self.block):
                meeting.barrier.abort()

    def land_copies(self):
        while not self.is_over or self.copies:
            with self.issued:
                if not self.copies and not self.issued.wait(0.05):
                    continue
                shared, data, barrier = self.copies.pop(self.random.randrange(len(self.copies)))
            self.shared[shared : shared + data.size] = data
            self.barriers[barrier].update(size_bytes=-data.size)

    def exchange(self, value=None):
        return self.warps[here.thread // 32].exchange(here.thread % 32, value)

    @contextlib.contextmanager
    def elect_one(self):
        here.is_elected = here.thread % 32 == 0
        yield
        here.is_elected = True

    def read(self, space, address, kind, count):
        size = np.dtype(kind).itemsize * count
        address = int(address)
        assert address >= 0 and address + size <= space.size and address % size == 0
        return tuple(space[address : address + size].view(kind))

    def write(self, space, address, values):
        data = np.array(values).view(np.uint8)
        address = int(address)
        assert address >= 0 and address + data.size <= space.size and address % data.size == 0
        space[address : address + data.size] = data

    def copy_bulk(self, shared, source, size_bytes, barrier):
        if here.is_elected:
            shared, source, size_bytes = int(shared), int(source), int(size_bytes)
            assert shared % 16 == source % 16 == size_bytes % 16 == 0
            assert source >= 0 and source + size_bytes <= self.memory.size
            self.shared[shared : shared + size_bytes] = 0xFF
            with self.issued:
                data = self.memory[source : source + size_bytes].copy()
                self.copies.append((shared, data, int(barrier)))
                self.issued.notify()

    def arrive(self, barrier, size_bytes=0):
        if here.is_elected:
            self.barriers[int(barrier)].update(arrivals=1, size_bytes=int(size_bytes))

    def start_products(self, fragments, descriptor):
        lanes = self.warpgroup.exchange(here.thread, (fragments, descriptor))
        # One group object per start: the first lane makes it.
        made = self.warpgroup.exchange(here.thread, Group(lanes) if here.thread == 0 else None)
        return made[0]

    def finish_products(self, products, pending):
        self.warpgroup.exchange(here.thread)
        return products.result(self.shared, here.thread)

    def instructions(self):
        """The layer ``ptx``, over this block."""
        return SimpleNamespace(
            init_barrier=lambda barrier, arrivals: self.barriers.setdefault(int(barrier), Mbarrier(arrivals)),
            arrive=self.arrive,
            arrive_expecting=self.arrive,
            wait=lambda barrier, parity: self.barriers[int(barrier)].wait(int(parity)),
            copy_bulk=self.copy_bulk,
            load_shared=lambda address: self.read(self.shared, address, np.uint32, 1)[0],
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
            float_of_bits=lambda word: np.array(word, dtype=np.uint32).view(np.float32)[()],
            mul_rn=lambda a, b: np.float32(a) * np.float32(b),
            fma_rn=lambda a, b, c: np.float32(np.float64(a) * np.float64(b) + np.float64(c)),
            select_by_bit=lambda word, bit, one, zero: one if int(word) >> bit & 1 else zero,
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
            elect_one=self.elect_one,
            shuffle_sync=lambda value, lane: self.exchange(value)[int(lane)],
            vote_any_sync=lambda flag: any(self.exchange(bool(flag))),
        )
        return SimpleNamespace(arch=arch, make_rmem_tensor=lambda shape, kind: [None] * shape[0])


def run_kernel(monkeypatch, payload, blocks, memory, parameters):
    """Run the kernel of a payload over global memory."""
    definition = micro_fc1.define(payload, target("sm_90a"))
    launch = definition.source.launch
    modules = (micro_fc1_sm_90a_cute, sm_90a, scales_sm_90a)
    kinds = {"Int32": np.int32, "Int64": np.int64, "Uint32": np.uint32}
    for module in modules:
        for name, kind in kinds.items():
            monkeypatch.setattr(module, name, lambda value, kind=kind: wrap(value, kind), raising=False)
        monkeypatch.setattr(module, "Float32", np.float32, raising=False)
        monkeypatch.setattr(module, "const_expr", bool, raising=False)
        dsl = SimpleNamespace(
            range=lambda *bounds, unroll: range(*(int(bound) for bound in bounds)),
            range_constexpr=range,
            const_expr=bool,
            min=min,
            Uint8=None,
        )
        monkeypatch.setattr(module, "cutlass", dsl, raising=False)
        # What the DSL would trace runs as written.
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value):
                monkeypatch.setattr(module, name, inspect.unwrap(value))
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                for method, function in list(vars(value).items()):
                    if inspect.isfunction(function) and method != "__init__":
                        monkeypatch.setattr(value, method, inspect.unwrap(function))
    for index in range(blocks):
        kernel = micro_fc1_sm_90a_cute.MicroFc1(launch=launch, **dict(definition.source.constants))
        block = Block(memory, launch.shared_bytes, seed=index)
        for module in modules:
            monkeypatch.setattr(module, "ptx", block.instructions(), raising=False)
            monkeypatch.setattr(module, "cute", block.language(index, blocks), raising=False)
        block.run(lambda kernel=kernel: kernel.kernel(parameters))


def native_plane(geometry, scales):
    """Arrange scale bytes ``(experts, rows, columns)`` as native planes."""
    offsets = np.array([[geometry.offset(r, c) for c in range(geometry.columns)] for r in range(geometry.rows)])
    plane = np.empty((scales.shape[0], scales[0].size), dtype=np.uint8)
    for expert, found in zip(scales, plane, strict=True):
        found[offsets.ravel()] = expert.ravel()
    return plane.ravel()


def inline_storage(geometry, scales, bases):
    """Encode scale bytes with the given row bases: tile blocks, base blocks, raw tiles; and the headers seen."""
    tiles, base_blocks, raw, headers = [], [], [], set()
    for expert, expert_bases in zip(scales, bases, strict=True):
        for block in range(geometry.row_blocks):
            group, row_tile = divmod(block, geometry.row_tiles)
            first = group * geometry.group_rows + row_tile * 128
            height = min(128, geometry.group_rows - row_tile * 128)
            rows = [first + row_of_slot(s) if row_of_slot(s) < height else None for s in range(128)]
            base_blocks.append([0 if r is None else expert_bases[r] for r in rows])
            for k in range(geometry.k_tiles):
                nibbles, records = [0] * 128, []
                words = np.zeros((128, 4), dtype=np.uint8)
                for slot, row in enumerate(rows):
                    for column in range(4 if row is not None else 0):
                        byte = words[slot, column] = expert[row, 4 * k + column]
                        difference = int(byte) - int(expert_bases[row])
                        nibbles[slot] |= (difference == 1) << column
                        if difference not in (0, 1):
                            records.append(slot | column << 8 | int(byte) << 16)
                header = len(records)
                if header > 7:
                    header, nibbles, records = 0x80000000 + len(raw), [0] * 128, []
                    raw.append(words.ravel())
                headers.add(header)
                selectors = [low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True)]
                tail = np.array([header, *records, *[0] * (7 - len(records))], dtype=np.uint32)
                tiles.append(np.concatenate((np.array(selectors, dtype=np.uint8), tail.view(np.uint8))))
    return np.concatenate(tiles), np.array(base_blocks, dtype=np.uint8).ravel(), np.concatenate(raw), headers


def place(parts):
    """Lay tensors out in one memory, 16-byte aligned and poison between them; return it with the addresses."""
    memory, addresses = [np.full(256, 0xFF, dtype=np.uint8)], []
    for part in parts:
        data = np.ascontiguousarray(part).view(np.uint8).ravel()
        addresses.append(sum(piece.size for piece in memory))
        memory += [data, np.full(16 - data.size % 16 + 256, 0xFF, dtype=np.uint8)]
    return np.concatenate(memory), addresses


def make_problem(*, hidden, intermediate, ids, top_k):
    """Make three experts and two tokens; ids of 3 and more are invalid."""
    rng = np.random.default_rng(7)
    experts = 3
    geometry = ScaleGeometry(rows=2 * intermediate, columns=hidden // 32, group_rows=intermediate)
    bases = rng.integers(118, 124, (experts, 2 * intermediate))
    scales = bases[..., None] + rng.integers(0, 2, (experts, 2 * intermediate, hidden // 32))
    sparse = rng.random(scales.shape) < 0.004
    scales[sparse] = rng.integers(110, 130, sparse.sum())
    scales[:, 70:74, :8] = rng.integers(112, 126, (experts, 4, 8))
    codes = rng.integers(0, 256, (experts, 2 * intermediate, hidden // 2), dtype=np.uint8)
    # Finite E4M3 bytes of moderate size.
    magnitudes, signs = rng.integers(0x20, 0x48, (2, hidden)), rng.integers(0, 2, (2, hidden))
    payload = (magnitudes | signs << 7).astype(np.uint8)
    token_scales = rng.integers(120, 130, (2, hidden // 32), dtype=np.uint8)
    alpha = np.array([1.0, 3.0, 0.5], dtype=np.float32)

    weights = dequantise_mxfp4(torch.from_numpy(codes), torch.from_numpy(scales.astype(np.uint8)))
    tokens = dequantise_mxfp8(torch.from_numpy(payload), torch.from_numpy(token_scales))
    expected = torch.full((len(ids), 2 * intermediate), torch.nan, dtype=torch.float64)
    for pair, expert in enumerate(ids):
        if expert < experts:
            up, gate = (alpha[expert] * (weights[expert] @ tokens[pair // top_k])).chunk(2)
            expected[pair] = torch.cat((gate, up))
    return SimpleNamespace(
        hidden=hidden,
        intermediate=intermediate,
        top_k=top_k,
        experts=experts,
        ids=np.array(ids),
        a8=arrange_activations(torch.from_numpy(payload), "sm_90a").numpy(),
        a_scale=activation_scales(torch.from_numpy(token_scales), "sm_90a").numpy(),
        w13=pack_w13(torch.from_numpy(codes), "sm_90a").numpy(),
        alpha=alpha,
        native=native_plane(geometry, scales),
        inline=inline_storage(geometry, scales, bases),
        expected=expected,
    )


def run_problem(monkeypatch, problem, *, csf_inline, id_bits, blocks):
    """Return the projections of a problem as bf16 bits; untouched rows keep 0xFFFF."""
    payload = MicroFc1Payload(
        hidden=problem.hidden,
        intermediate=problem.intermediate,
        top_k=problem.top_k,
        id_bits=id_bits,
        csf_inline=csf_inline,
    )
    scales = problem.inline[:3] if csf_inline else (problem.native,)
    ids = problem.ids.astype(np.int32 if id_bits == 32 else np.int64)
    output = np.full(problem.expected.shape, 0xFFFF, dtype=np.uint16)
    memory, addresses = place((problem.a8, problem.a_scale, problem.w13, *scales, ids, problem.alpha, output))
    run_kernel(
        monkeypatch,
        payload,
        blocks,
        memory,
        (*(np.int64(address) for address in addresses), np.int32(ids.size), np.int32(problem.experts)),
    )
    return memory[addresses[-1] : addresses[-1] + output.nbytes].view(np.uint16).reshape(output.shape)


def check_projections(problem, found):
    """Compare bf16 bits with float64, and see that rows of invalid experts were left alone."""
    for bits, expected in zip(found, problem.expected, strict=True):
        if expected.isnan().any():
            assert (bits == 0xFFFF).all()
        else:
            values = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).double()
            assert torch.linalg.norm(values - expected) <= 4e-3 * torch.linalg.norm(expected)


def test_both_storages_give_the_same_projections(monkeypatch):
    # Three 64-row tiles, the last one a short scale tile; four steps, so the rebuild lags two.
    problem = make_problem(hidden=512, intermediate=192, ids=(2, 7, 0), top_k=2)
    headers = problem.inline[3]
    assert any(1 <= header <= 7 for header in headers) and any(header >> 31 for header in headers)
    with monkeypatch.context() as patch:
        native = run_problem(patch, problem, csf_inline=False, id_bits=32, blocks=2)
    with monkeypatch.context() as patch:
        inline = run_problem(patch, problem, csf_inline=True, id_bits=64, blocks=1)
    assert (native == inline).all()
    check_projections(problem, native)


def test_smallest_hidden_size(monkeypatch):
    # Two steps, fewer than stages: with a lag of two the bases and half of the next task would be used.
    problem = make_problem(hidden=256, intermediate=192, ids=(1, 0), top_k=1)
    check_projections(problem, run_problem(monkeypatch, problem, csf_inline=True, id_bits=32, blocks=1))


def test_whole_scale_tiles_only(monkeypatch):
    problem = make_problem(hidden=256, intermediate=128, ids=(1, 0), top_k=1)
    check_projections(problem, run_problem(monkeypatch, problem, csf_inline=False, id_bits=64, blocks=1))
