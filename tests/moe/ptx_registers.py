"""Registers of a block, and arithmetic over them: integers, conversions, comparisons, exchange, matrix products."""

import re

import numpy as np

from .ptx_numbers import COMPARE, E2M1, E4M3, INTEGER, bits_of, floats, round_bf16, round_e4m3, scale_of, signed, width


class Registers:
    """Registers of a block by name, a value for each of its threads, and the instructions that touch nothing else."""

    def __init__(self, threads: int, known: dict[str, np.ndarray]) -> None:
        self.threads, self.registers = threads, known
        self.products = 0

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
