"""Run compiled PTX on the CPU: a small SIMT machine in numpy for the kernels of these tests.

It executes the text the compiler made, so it checks index arithmetic, staging, control flow and rounding of what
would be shipped, on a host without a GPU and for instructions that no available GPU has. It is strict: out-of-bounds
and misaligned accesses, divergent warp instructions and unknown instructions are errors; asynchronous copies land as
late as the program allows, and their target is poisoned meanwhile.
"""

import re

import numpy as np

from .ptx_memory import POISON, Memory
from .ptx_numbers import bits_of, floats, width
from .ptx_registers import Registers
from .ptx_text import Instruction, parse

SHARED_BASE = 1024


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


class Block(Registers):
    """One block: its threads in lockstep, its shared memory, and copies on their way."""

    def __init__(self, kernel, memory, parameters, index, grid, threads, shared_bytes) -> None:
        known = {
            "%tid.x": np.arange(threads, dtype=np.uint64),
            "%ctaid.x": np.full(threads, index, np.uint64),
            "%nctaid.x": np.full(threads, grid, np.uint64),
            "__dynamic_shmem__0": np.full(threads, SHARED_BASE, np.uint64),
        }
        super().__init__(threads, known)
        self.kernel, self.memory, self.parameters = kernel, memory, parameters
        self.shared = np.full(SHARED_BASE + shared_bytes, POISON, np.uint8)
        self.open: list[list] = [[] for _ in range(threads)]
        self.groups: list[list[list]] = [[] for _ in range(threads)]

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
