"""The machine that runs PTX, for the kernels that decode batches."""

import numpy as np

POISON = 0xFF


def extended(machine, *, is_reversed=False):
    """Return a block of the machine that permutes bytes by a register; reversed, its last warp goes first."""

    class Block(machine.Block):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            if is_reversed:
                self.registers["%tid.x"] = self.registers["%tid.x"].reshape(-1, 32)[::-1].flatten()

        def execute(self, instruction, active):
            op, args = instruction.op, instruction.operands
            if op[0] != "prmt":
                return super().execute(instruction, active)
            low, high, order = (self.value(name, 32) for name in args[1:])
            assert not (order[active] & np.uint64(0x8888)).any()
            pool = low | high << np.uint64(32)
            made = np.zeros(self.threads, np.uint64)
            for i in range(4):
                byte = order >> np.uint64(4 * i) & np.uint64(7)
                made |= (pool >> byte * np.uint64(8) & np.uint64(255)) << np.uint64(8 * i)
            self.set(args[0], made, active, 32)

    return Block
