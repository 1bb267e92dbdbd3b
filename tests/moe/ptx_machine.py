"""Run compiled PTX on the CPU: a small SIMT machine in numpy for the kernels of these tests.

It executes the text the compiler made, so it checks index arithmetic, staging, control flow and rounding of what
would be shipped, on a host without a GPU and for instructions that no available GPU has. It is strict: out-of-bounds
and misaligned accesses, divergent warp instructions and unknown instructions are errors; asynchronous copies land as
late as the program allows, and their target is poisoned meanwhile.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

SHARED_BASE = 1024
POISON = 0xA5
E4M3 = np.array(
    [
        np.nan
        if byte & 127 == 127
        else (-1.0 if byte & 128 else 1.0)
        * ((byte & 7) / 8 * 2.0**-6 if not byte & 120 else (1 + (byte & 7) / 8) * 2.0 ** ((byte >> 3 & 15) - 7))
        for byte in range(256)
    ]
)
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@dataclass
class Memory:
    """Global memory: buffers at aligned addresses with gaps between them."""

    data: np.ndarray = field(default_factory=lambda: np.full(1 << 24, POISON, np.uint8))
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def put(self, values: np.ndarray) -> int:
        """Copy an array in and return its address."""
        start = (self.ends[-1] if self.ends else 0) + 512 & ~255
        self.starts.append(start)
        self.ends.append(start + values.nbytes)
        self.data[start : start + values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return start

    def get(self, address: int, like: np.ndarray) -> np.ndarray:
        """Copy an array of the shape and type of ``like`` out."""
        return self.data[address : address + like.nbytes].copy().view(like.dtype).reshape(like.shape)

    def check(self, addresses: np.ndarray, size: int) -> None:
        index = np.searchsorted(np.array(self.starts), addresses, side="right") - 1
        assert (index >= 0).all() and (addresses + size <= np.array(self.ends)[index]).all(), "out of bounds"


@dataclass
class Instruction:
    guard: str | None
    op: list[str]
    operands: list[str]
    text: str


class Kernel:
    """One entry of a PTX module."""

    def __init__(self, ptx: str) -> None:
        ptx = re.sub(r"//[^\n]*", "", ptx)
        head, body = re.search(r"\.entry\s+\w+\s*\((.*?)\)(.*)", ptx, re.DOTALL).groups()
        self.parameters = re.findall(r"\.param\s+\.\w+\s+(\w+)", head)
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        body = body[body.index("{") + 1 : body.rindex("}")]
        body = re.sub(r"^\s*[{}]\s*$", "", body, flags=re.MULTILINE)
        for statement in re.split(r";|(?<=:)\s*\n", body):
            text = " ".join(statement.split())
            if text.endswith(":"):
                self.labels[text[:-1]] = len(self.code)
            elif text and not text.startswith("."):
                self.code.append(parse(text))

    def run(
        self,
        memory: Memory,
        arguments: list[int],
        *,
        grid: int,
        block: int,
        shared_bytes: int = 0,
        is_serial: bool = False,
    ) -> int:
        """Run all blocks one after another; return the number of warp-wide matrix products.

        The warps of a block go in lockstep, or one after another as far as barriers let them.
        """
        assert len(arguments) == len(self.parameters)
        values = dict(zip(self.parameters, arguments, strict=True))
        blocks = (Block(self, memory, values, index, grid, block, shared_bytes) for index in range(grid))
        return sum(made.run(is_serial=is_serial) for made in blocks)


def parse(text: str) -> Instruction:
    guard = None
    if text.startswith("@"):
        guard, text = text[1:].split(" ", 1)
    name, _, rest = text.partition(" ")
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
    return Instruction(guard, name.split("."), operands, text)


def width(kind: str) -> int:
    """Return the bits of a type suffix such as ``u32``."""
    return 1 if kind == "pred" else int(kind[1:])


def signed(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << np.uint64(64 - bits)).view(np.int64) >> (64 - bits)


def floats(values: np.ndarray) -> np.ndarray:
    return values.astype(np.uint32).view(np.float32)


def bits_of(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint32).astype(np.uint64)


def round_bf16(values: np.ndarray) -> np.ndarray:
    bits = bits_of(values)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), np.uint64(0x7FFF), rounded)


def round_e4m3(values: np.ndarray) -> np.ndarray:
    magnitudes = E4M3[:127]
    size = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    low = np.clip(np.searchsorted(magnitudes, size, side="right") - 1, 0, 125)
    below, above = size - magnitudes[low], magnitudes[low + 1] - size
    code = np.where((above < below) | ((above == below) & (low % 2 == 1)), low + 1, low)
    return np.where(np.isnan(values), 127, code | np.where(np.signbit(values), 128, 0)).astype(np.uint64)


COMPARE: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
INTEGER: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


class Block:
    def __init__(self, kernel, memory, parameters, index, grid, threads, shared_bytes) -> None:
        self.kernel, self.memory, self.parameters, self.threads = kernel, memory, parameters, threads
        self.shared = np.full(SHARED_BASE + shared_bytes, POISON, np.uint8)
        self.registers: dict[str, np.ndarray] = {
            "%tid.x": np.arange(threads, dtype=np.uint64),
            "%ctaid.x": np.full(threads, index, np.uint64),
            "%nctaid.x": np.full(threads, grid, np.uint64),
            "__dynamic_shmem__0": np.full(threads, SHARED_BASE, np.uint64),
        }
        self.open: list[list] = [[] for _ in range(threads)]
        self.groups: list[list[list]] = [[] for _ in range(threads)]
        self.products = 0

    def run(self, *, is_serial: bool) -> int:
        pc = np.zeros(self.threads, np.int64)
        end = len(self.kernel.code)
        is_waiting = np.zeros(self.threads, bool)
        while (pc < end).any():
            runnable = (pc < end) & ~is_waiting
            if not runnable.any():
                is_waiting[:] = False
                continue
            if is_serial:
                runnable &= np.arange(self.threads) // 32 == np.flatnonzero(runnable)[0] // 32
            at = pc[runnable].min()
            active = runnable & (pc == at)
            instruction = self.kernel.code[at]
            pc[active] += 1
            if instruction.guard:
                name = instruction.guard.lstrip("!")
                active = active & (self.registers[name].astype(bool) ^ (instruction.guard[0] == "!"))
            match instruction.op[0]:
                case "bra":
                    pc[active] = self.kernel.labels[instruction.operands[0]]
                case "ret":
                    pc[active] = end
                case "bar":
                    is_waiting |= active
                case "griddepcontrol":
                    pass  # one launch at a time: the one before it is complete
                case _ if active.any():
                    self.execute(instruction, active)
        return self.products

    def value(self, text: str, bits: int = 64) -> np.ndarray:
        if text in self.registers:
            found = self.registers[text]
        elif text.startswith("0f"):
            found = np.full(self.threads, int(text[2:], 16), np.uint64)
        else:
            found = np.full(self.threads, int(text, 0) & (1 << 64) - 1, np.uint64)
        return found & np.uint64((1 << bits) - 1)

    def set(self, name: str, values: np.ndarray, active: np.ndarray, bits: int = 64) -> None:
        old = self.registers.get(name)
        if old is None:
            old = np.full(self.threads, 0xDEADBEEFDEADBEEF, np.uint64)
        masked = values.astype(np.uint64, copy=False) & np.uint64((1 << bits) - 1)
        self.registers[name] = np.where(active, masked, old)

    def execute(self, instruction: Instruction, active: np.ndarray) -> None:
        op, args = instruction.op, instruction.operands
        special = {
            "ld": self.access, "st": self.access, "cp": self.copy, "mma": self.multiply, "shfl": self.shuffle,
            "mov": self.move, "cvt": self.convert, "setp": self.compare, "selp": self.choose,
        }  # fmt: skip
        if op[0] in special:
            special[op[0]](op, args, active)
        elif op[-1] == "f32":
            operands = [floats(self.value(arg, 32)) for arg in args[1:]]
            assert op[0] in ("add", "mul") and len(operands) == 2, instruction.text
            made = operands[0] + operands[1] if op[0] == "add" else operands[0] * operands[1]
            self.set(args[0], bits_of(made), active)
        else:
            bits = width(op[-1])
            made = self.integer(op, args, bits, op[-1][0] == "s", instruction.text)
            self.set(args[0], made, active)

    def shuffle(self, op, args, active) -> None:
        by_warp = active.reshape(-1, 32)
        assert op[2] == "bfly" and (by_warp.all(1) == by_warp.any(1)).all(), "divergent shuffle"
        self.set(args[0], self.value(args[1])[np.arange(self.threads) ^ int(args[2])], active, 32)

    def compare(self, op, args, active) -> None:
        bits = width(op[-1])
        operands = [self.value(arg, bits) for arg in args[1:3]]
        if op[-1][0] == "s":
            operands = [signed(operand, bits) for operand in operands]
        self.set(args[0], COMPARE[op[1]](*operands), active, 1)

    def choose(self, op, args, active) -> None:
        chosen = np.where(self.value(args[3], 1) == 1, self.value(args[1]), self.value(args[2]))
        self.set(args[0], chosen, active, width(op[-1]))

    def move(self, op, args, active) -> None:
        if args[1].startswith("{"):
            low, high = (self.value(name, 16) for name in re.split(r"[{},\s]+", args[1])[1:-1])
            self.set(args[0], low | high << np.uint64(16), active)
        else:
            self.set(args[0], self.value(args[1]), active, width(op[-1]))

    def integer(self, op, args, bits, is_signed, text) -> np.ndarray:
        mask = np.uint64((1 << bits) - 1)
        operands = [self.value(arg, bits) for arg in args[1:]]
        if op[0] in ("shl", "shr"):
            count = np.minimum(self.value(args[2], 32), np.uint64(63))
            if op[0] == "shl":
                return operands[0] << count & mask
            if is_signed:
                return (signed(operands[0], bits) >> count.view(np.int64)).view(np.uint64) & mask
            return operands[0] >> count
        if op[0] == "prmt":
            pool = np.stack([operands[i // 4] >> np.uint64(8 * (i % 4)) & np.uint64(255) for i in range(8)])
            order = int(args[3], 0)
            return sum(pool[order >> 4 * i & 7] << np.uint64(8 * i) for i in range(4))
        if is_signed:
            operands = [signed(operand, bits) for operand in operands]
        if op[0] in ("mul", "mad"):
            product = operands[0] * operands[1]
            if op[1] == "wide":
                return product.view(np.uint64)
            if op[1] == "hi":
                assert bits == 32
                return (product >> 32 if is_signed else product >> np.uint64(32)).view(np.uint64) & mask
            return (product + (operands[2] if op[0] == "mad" else 0)).view(np.uint64) & mask
        if op[0] in ("not", "neg"):
            return (~operands[0] if op[0] == "not" else -operands[0]).view(np.uint64) & mask
        assert op[0] in INTEGER, text
        return INTEGER[op[0]](operands[0], operands[1]).view(np.uint64) & mask

    def convert(self, op, args, active) -> None:
        if op[-2] == "bf16x2":
            high, low = (round_bf16(floats(self.value(arg, 32))) for arg in args[1:])
            self.set(args[0], low | high << np.uint64(16), active)
        elif op[-2] == "e4m3x2":
            assert "satfinite" in op
            high, low = (round_e4m3(floats(self.value(arg, 32))) for arg in args[1:])
            self.set(args[0], low | high << np.uint64(8), active)
        else:
            target, source = int(op[-2][1:]), int(op[-1][1:])
            values = self.value(args[1], source)
            if op[-1][0] == "s":
                values = signed(values, source).view(np.uint64)
            self.set(args[0], values, active, target)

    def address(self, operand: str, size: int, active: np.ndarray, *, is_shared: bool) -> np.ndarray:
        name, _, offset = operand.strip("[]").partition("+")
        addresses = (self.value(name) + np.uint64(int(offset or "0")))[active].astype(np.int64)
        assert (addresses % size == 0).all(), "misaligned"
        if is_shared:
            assert (addresses >= SHARED_BASE).all() and (addresses + size <= len(self.shared)).all()
        else:
            self.memory.check(addresses, size)
        return addresses

    def access(self, op, args, active) -> None:
        if op[1] == "param":
            self.set(args[0], np.full(self.threads, self.parameters[args[1].strip("[]")], np.uint64), active)
            return
        count = int(next((part[1:] for part in op if re.fullmatch(r"v\d", part)), "1"))
        size = int(op[-1][1:]) // 8
        words, place = args if op[0] == "ld" else reversed(args)
        is_shared = op[1] == "shared"
        addresses = self.address(place, size * count, active, is_shared=is_shared)
        data = self.shared if is_shared else self.memory.data
        names = re.split(r"[{},\s]+", words)[1:-1] if count > 1 else [words]
        for i, name in enumerate(names):
            index = addresses[:, None] + size * i + np.arange(size)
            if op[0] == "ld":
                padded = np.zeros((len(addresses), 8), np.uint8)
                padded[:, :size] = data[index]
                loaded = np.zeros(self.threads, np.uint64)
                loaded[active] = padded.view(np.uint64)[:, 0]
                self.set(name, loaded, active)
            else:
                data[index] = self.value(name)[active, None].view(np.uint8).reshape(-1, 8)[:, :size]

    def copy(self, op, args, active) -> None:
        if op[2] == "commit_group":
            for thread in np.flatnonzero(active):
                self.groups[thread].append(self.open[thread])
                self.open[thread] = []
            return
        if op[2] == "wait_group":
            for thread in np.flatnonzero(active):
                groups = self.groups[thread]
                while len(groups) > int(args[0]):
                    for target, values in groups.pop(0):
                        self.shared[target : target + len(values)] = values
            return
        size = int(args[2])
        used = self.value(args[3], 32)[active].astype(int) if len(args) > 3 else np.full(active.sum(), size)
        targets = self.address(args[0], size, active, is_shared=True)
        reading = active.copy()
        reading[active] = used > 0
        sources = np.zeros(self.threads, np.int64)
        sources[reading] = self.address(args[1], size, reading, is_shared=False)
        for thread, target, count in zip(np.flatnonzero(active), targets, used, strict=True):
            values = np.zeros(size, np.uint8)
            values[:count] = self.memory.data[sources[thread] : sources[thread] + count]
            self.shared[target : target + size] = POISON
            self.open[thread].append((target, values))

    def multiply(self, op, args, active) -> None:
        """m16n8k32 block-scaled product by the fragment tables of the PTX ISA, in float64, one rounding to f32."""
        names = [re.split(r"[{},\s]+", arg)[1:-1] for arg in args]
        results, a_names, b_names, c_names, (scale_a,), (byte_a, thread_a), (scale_b,), (byte_b, thread_b) = names
        by_warp = active.reshape(-1, 32)
        assert (by_warp.all(1) == by_warp.any(1)).all(), "divergent mma"
        for warp in np.flatnonzero(by_warp.all(1)):
            lanes = slice(32 * warp, 32 * warp + 32)
            q, c = np.arange(32) // 4, np.arange(32) % 4
            a, b, scales_a, scales_b = np.zeros((16, 32)), np.zeros((32, 8)), np.zeros(16), np.zeros(8)
            for i, name in enumerate(a_names):
                for byte in range(4):
                    codes = (self.value(name)[lanes] >> np.uint64(8 * byte) & np.uint64(255)).astype(int)
                    a[q + 8 * (i % 2), 16 * (i // 2) + 4 * c + byte] = E4M3[codes]
            for i, name in enumerate(b_names):
                for byte in range(4):
                    codes = (self.value(name)[lanes] >> np.uint64(8 * byte) & np.uint64(255)).astype(int)
                    assert not (codes & 0xC3).any(), "padding bits of an E2M1 container"
                    b[16 * i + 4 * c + byte, q] = np.where(codes & 32, -1, 1) * E2M1[codes >> 2 & 7]
            # 1X: lanes c = 2*thread_a, 2*thread_a + 1 of a quad hold rows q, q + 8; lane c = thread_b column q.
            words = self.value(scale_a)[lanes]
            for half in range(2):
                supplied = words[4 * np.arange(8) + 2 * int(thread_a) + half]
                scales_a[8 * half + np.arange(8)] = scale_of(supplied >> np.uint64(8 * int(byte_a)))
            words = self.value(scale_b)[lanes][4 * np.arange(8) + int(thread_b)]
            scales_b[:] = scale_of(words >> np.uint64(8 * int(byte_b)))
            product = (a * scales_a[:, None]) @ (b * scales_b)
            mask = np.zeros(self.threads, bool)
            mask[lanes] = True
            for i, name in enumerate(results):
                start = floats(self.value(c_names[i], 32))[lanes]
                made = np.zeros(self.threads, np.uint64)
                made[lanes] = bits_of(product[q + 8 * (i // 2), 2 * c + i % 2] + start)
                self.set(name, made, mask)
            self.products += 1


def scale_of(words: np.ndarray) -> np.ndarray:
    codes = (words & np.uint64(255)).astype(int)
    return np.where(codes == 255, np.nan, np.exp2(codes - 127.0))
