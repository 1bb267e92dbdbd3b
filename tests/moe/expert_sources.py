"""Weights in their source formats, and what is expected of experts that are prepared from them."""

from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import asdict, replace
from torch import Tensor

from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.scales import csf_batch, inline
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.kernels.scales.synthetic import synthetic_scales

EXPERTS, HIDDEN = 3, 256
ARMS: dict[str, dict[str, Any]] = {
    "native": {"weight_format": "mxfp4", "is_csf_inline": True},
    "inline": {"weight_format": "mxfp4_csf", "is_csf_inline": True},
    "expand": {"weight_format": "mxfp4_csf", "is_csf_inline": False},
}
FORMS = {"native": Tensor, "inline": InlineScales, "expand": CsfBatch}


class Sources(Struct, frozen=True):
    """Logical tensors of a layer, up rows first."""

    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor

    def gate_first(self) -> "Sources":
        """The same layer with the gate rows first."""
        half = self.w13.shape[1] // 2
        return replace(
            self, w13=self.w13.roll(half, 1).contiguous(), w13_scales=self.w13_scales.roll(half, 1).contiguous()
        )

    def cuda(self) -> "Sources":
        return Sources(**{name: tensor.cuda() for name, tensor in asdict(self).items()})

    def prepare(self, arm: str, arch: str = "sm_90a", **options: Any) -> PreparedExperts:
        return prepare_experts(**asdict(self), arch=arch, **{**ARMS[arm], **options})


def geometries(hidden: int, intermediate: int) -> tuple[ScaleGeometry, ScaleGeometry]:
    return (
        ScaleGeometry(rows=2 * intermediate, columns=hidden // 32, group_rows=intermediate),
        ScaleGeometry(rows=hidden, columns=intermediate // 32, group_rows=hidden),
    )


def make_sources(intermediate: int, *, hidden: int = HIDDEN, experts: int = EXPERTS) -> Sources:
    generator = torch.Generator().manual_seed(intermediate)
    fc1, fc2 = geometries(hidden, intermediate)

    def codes(rows: int, k: int) -> Tensor:
        return torch.randint(0, 256, (experts, rows, k // 2), generator=generator, dtype=torch.uint8)

    return Sources(
        w13=codes(2 * intermediate, hidden),
        w13_scales=synthetic_scales(fc1, experts, generator),
        w2=codes(hidden, intermediate),
        w2_scales=synthetic_scales(fc2, experts, generator),
    )


def native_planes(made: PreparedExperts) -> tuple[Tensor, Tensor]:
    """The native planes of both projections, decoded where need be."""

    def decoded(scales: Any) -> Tensor:
        if isinstance(scales, InlineScales):
            return inline.decode(scales)
        return csf_batch.decode(scales) if isinstance(scales, CsfBatch) else scales

    return decoded(made.w13_scales), decoded(made.w2_scales)
