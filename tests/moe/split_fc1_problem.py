"""A problem for the sm_120a kernel of split_fc1, and the machine that runs its PTX over it."""

import numpy as np
import torch

from planfreeze.family import CuteSource, Definition
from planfreeze.kernels.moe.geometry import intermediate_bytes
from planfreeze.kernels.moe.reference import micro_activation, micro_fc1, quantise_mxfp8
from planfreeze.kernels.moe.reference_grouped import place_routes
from planfreeze.kernels.moe.reference_grouped import split_fc1 as reference
from planfreeze.kernels.moe.reference_rows import read_rows
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload, split_fc1
from planfreeze.kernels.moe.weights import pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.target import target

ARCH = "sm_120a"
TILE_M = 16
EXPERTS = 3
POISON = 0xEE
ABSENT = 2**31 - 1
"""What stands in the route arrays behind the live tiles."""
f32 = np.float32
# Expert 1 fills one m tile and starts another, expert 0 has no route, two routes are invalid.
IDS = ((1, 2), (1, -1), (1, 2), (EXPERTS, 1), *[(1, 1)] * 7, (2, 1))


def define(**fields) -> Definition:
    return split_fc1.define(SplitFc1Payload(tile_m=TILE_M, **fields), target(ARCH))


def count_pointers(definition: Definition) -> int:
    return sum(argument.is_pointer for argument in definition.arguments)


def make_scales(experts: int, rows: int, columns: int) -> torch.Tensor:
    """Rows of base and base + 1; but for expert 0, exceptions here and there and four rows that make a tile raw."""
    generator = torch.Generator().manual_seed(11)
    scales = torch.randint(117, 121, (experts, rows, 1), generator=generator) + torch.randint(
        0, 2, (experts, rows, columns), generator=generator
    )
    sparse = scales[1:].view(-1)[::97]
    sparse.copy_(torch.randint(114, 124, sparse.shape, generator=generator))
    scales[1, 40:44] = torch.randint(112, 124, (4, columns), generator=generator)
    scales[1:, -1] = torch.randint(112, 124, (columns,), generator=generator)
    return scales.to(torch.uint8)


def with_f32_instructions(ptx_machine):
    """Return a block of the machine with the f32 instructions of the activation.

    The approximate ones are exact here: what a device computes for them differs in the last bits.
    """

    def fma(a, b, c):
        return f32(a.astype(np.float64) * b + c)

    made = {
        "fma": fma,
        "min": np.minimum,
        "max": np.maximum,
        "neg": np.negative,
        "rcp": lambda a: f32(1) / a,
        "ex2": lambda a: f32(np.exp2(a.astype(np.float64))),
    }

    class Block(ptx_machine.Block):
        def execute(self, instruction, active):
            if instruction.op[0] not in made or instruction.op[-1] != "f32":
                return super().execute(instruction, active)
            assert instruction.op[1] in ("rn", "NaN", "approx", "f32"), instruction.text
            operands = [ptx_machine.floats(self.value(name, 32)) for name in instruction.operands[1:]]
            values = made[instruction.op[0]](*operands)
            self.set(instruction.operands[0], ptx_machine.bits_of(values), active)

    return Block


class Problem:
    """Random experts and tokens; routes in m tiles, with more tiles of capacity than live ones."""

    def __init__(self, *, hidden: int, intermediate: int, ids=IDS) -> None:
        generator = torch.Generator().manual_seed(5)
        self.hidden, self.intermediate = hidden, intermediate
        self.ids = torch.tensor(ids)
        self.tokens, self.top_k = self.ids.shape
        self.x = torch.randn(self.tokens, hidden, generator=generator).bfloat16()
        self.codes = torch.randint(
            0, 256, (EXPERTS, 2 * intermediate, hidden // 2), generator=generator, dtype=torch.uint8
        )
        self.scales = make_scales(EXPERTS, 2 * intermediate, hidden // 32)
        self.alpha = torch.tensor([0.5, 1.25, 0.75])
        self.geometry = ScaleGeometry(rows=2 * intermediate, columns=hidden // 32, group_rows=intermediate)
        self.plane = native_plane(self.geometry, self.scales)
        self.routes = place_routes(self.ids, torch.ones(self.ids.shape), experts=EXPERTS, tile_m=TILE_M)
        pairs = self.ids.numel()
        self.m_tiles = -(-pairs // TILE_M) + min(EXPERTS, pairs) - 1
        self.rows = TILE_M * self.m_tiles

    def run(self, monkeypatch, ptx_machine, compile_cute, *, csf_inline: bool, grid: int, is_serial=False, **fields):
        """Run the compiled kernel; return the bytes of the intermediate."""
        definition = define(
            hidden=self.hidden,
            intermediate=self.intermediate,
            top_k=self.top_k,
            csf_inline=csf_inline,
            **fields,
        )
        source = definition.source
        assert isinstance(source, CuteSource)
        monkeypatch.setattr(ptx_machine, "Block", with_f32_instructions(ptx_machine))
        memory = ptx_machine.Memory()
        routes = self.routes
        assert routes.tiles < self.m_tiles
        inputs = [*quantise_mxfp8(self.x), pack_w13(self.codes, ARCH)]
        inputs += encode(self.geometry, self.plane).parts() if csf_inline else (self.plane,)
        for values, length in (
            (routes.token_map, self.rows),
            (routes.tile_expert, self.m_tiles),
            (routes.tile_valid, self.m_tiles),
        ):
            inputs.append(torch.nn.functional.pad(values, (0, length - len(values)), value=ABSENT))
        inputs += [torch.tensor([routes.tiles], dtype=torch.int32), self.alpha]
        addresses = [memory.put(tensor.numpy()) for tensor in inputs]
        buffer = np.full(intermediate_bytes(ARCH, self.rows, self.intermediate), POISON, np.uint8)
        addresses.append(memory.put(buffer))
        assert len(addresses) == count_pointers(definition)
        kernel = ptx_machine.Kernel(compile_cute(source, ARCH, len(addresses), 4).ptx)
        with np.errstate(all="ignore"):
            products = kernel.run(
                memory,
                [*addresses, self.tokens, EXPERTS, self.rows, self.m_tiles],
                grid=definition.grid({"m_tiles": self.m_tiles}, grid)[0],
                block=source.launch.block[0],
                shared_bytes=source.launch.shared_bytes,
                is_serial=is_serial,
            )
        # Four warps, four fragments of gate and four of up in every K32 group.
        assert products == routes.tiles * -(-self.intermediate // 128) * self.hidden // 32 * 32
        return memory.get(addresses[-1], buffer)

    def read(self, buffer: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return payload and scales in K order of all capacity rows."""
        return read_rows(torch.from_numpy(buffer), ARCH, self.rows, self.intermediate, TILE_M)

    def is_written(self) -> torch.Tensor:
        """Whether a capacity row is a route."""
        return torch.nn.functional.pad(self.routes.is_live, (0, self.rows - self.routes.rows))

    def activations(self, limit: float | None = None) -> torch.Tensor:
        """The bf16 activations of the live rows."""
        found = reference(
            *quantise_mxfp8(self.x),
            self.codes,
            self.scales,
            self.routes,
            self.top_k,
            alpha=self.alpha,
            limit=limit,
        )
        return found[self.routes.is_live]

    def rounded_activations(self) -> torch.Tensor:
        """The activations of the live rows where gate and up are rounded to bf16 before."""
        projections = micro_fc1(self.x, self.codes, self.scales, self.ids, alpha=self.alpha)
        pairs = self.routes.token_map[self.routes.is_live].long()
        return micro_activation(projections, self.ids, EXPERTS)[pairs]


def relative_l2(found, expected):
    return ((found - expected).norm() / expected.norm()).item()
