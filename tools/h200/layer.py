"""Random layers and routes for checks and timings on a device."""

from collections.abc import Callable

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze.kernels.moe.weights import pack_w2, pack_w13
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.kernels.scales.storage import InlineScales

ARCH = "sm_90a"


class Sizes(Struct, frozen=True, kw_only=True):
    """Geometry of one rank's layer."""

    experts: int
    hidden: int
    intermediate: int
    top_k: int


class Projection(Struct, frozen=True, kw_only=True):
    """One projection of a layer, in all forms its kernels read.

    Parameters
    ----------
    codes : Tensor
        ``(experts, rows, K / 2)`` logical FP4 codes; of the first projection the up rows, then the gate rows.
    scales : Tensor
        ``(experts, rows, K / 32)`` E8M0 bytes.
    """

    sizes: Sizes
    codes: Tensor
    scales: Tensor
    words: Tensor
    native: Tensor
    inline: InlineScales


MakeScales = Callable[[ScaleGeometry, int, torch.Generator], Tensor]


def make_w13(sizes: Sizes, generator: torch.Generator, make_scales: MakeScales) -> Projection:
    """Make the first projection: random weights, and scales by ``make_scales``."""
    rows, columns = 2 * sizes.intermediate, sizes.hidden // 32
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=sizes.intermediate)
    return make_projection(sizes, geometry, pack_w13, generator, make_scales)


def make_w2(sizes: Sizes, generator: torch.Generator, make_scales: MakeScales) -> Projection:
    """Make the second projection: random weights, and scales by ``make_scales``."""
    rows, columns = sizes.hidden, sizes.intermediate // 32
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=rows)
    return make_projection(sizes, geometry, pack_w2, generator, make_scales)


def make_projection(
    sizes: Sizes,
    geometry: ScaleGeometry,
    pack: Callable[[Tensor, str], Tensor],
    generator: torch.Generator,
    make_scales: MakeScales,
) -> Projection:
    """Make a projection of a geometry in all forms."""
    codes = random_bytes(generator, 0, 255, sizes.experts, geometry.rows, geometry.columns * 16)
    scales = make_scales(geometry, sizes.experts, generator)
    native = native_plane(geometry, scales)
    inline = encode(geometry, native)
    return Projection(sizes=sizes, codes=codes, scales=scales, words=pack(codes, ARCH), native=native, inline=inline)


def exceptional_scales(geometry: ScaleGeometry, experts: int, generator: torch.Generator) -> Tensor:
    """Make scales full of exceptions, to check with: every 97th byte an outlier, three dense runs of four rows."""
    rows, columns = geometry.rows, geometry.columns
    scales = random_bytes(generator, 120, 125, experts, rows, 1) + random_bytes(generator, 0, 1, experts, rows, columns)
    sparse = scales.view(-1)[::97]
    sparse.copy_(random_bytes(generator, 116, 129, len(sparse)))
    for row in (40, rows // 2 - 8, rows - 4):
        scales[:, row : row + 4] = random_bytes(generator, 114, 131, experts, 4, columns)
    return scales


def serving_scales(geometry: ScaleGeometry, experts: int, generator: torch.Generator) -> Tensor:
    """Make scales about as real checkpoints have them, to time with: 0.03 % exceptions, two dense rows an expert."""
    rows, columns = geometry.rows, geometry.columns
    scales = random_bytes(generator, 112, 123, experts, rows, 1) + random_bytes(generator, 0, 1, experts, rows, columns)
    rare = torch.rand(scales.shape, generator=generator, device=generator.device) < 3e-4
    scales = torch.where(rare, scales + 2, scales)
    scales[:, 100:102] = random_bytes(generator, 114, 131, experts, 2, columns)
    return scales


def random_bytes(generator: torch.Generator, low: int, high: int, *size: int) -> Tensor:
    """Draw uint8 in low..high."""
    return torch.randint(low, high + 1, size, generator=generator, device=generator.device, dtype=torch.uint8)


def random_routes(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> Tensor:
    """Draw ``(tokens, top_k)`` int64 expert ids, each token's distinct."""
    ranks = torch.rand(tokens, experts, generator=generator, device=generator.device)
    return ranks.argsort(dim=1)[:, :top_k].contiguous()
