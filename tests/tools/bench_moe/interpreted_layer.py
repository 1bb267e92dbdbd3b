"""Run the benchmark's Triton layer in Triton's interpreter; print its relative error against float64.

The interpreter cuts where the device rounds to nearest even, so conversions to bf16 and E4M3 go through torch.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are decorated
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import numpy as np
import torch
import triton.language as tl
from h200.layer import Sizes
from moe_bench import inputs, scaled_layer
from triton.runtime import interpreter

from planfreeze.kernels.moe.reference_grouped import grouped_layer
from planfreeze.kernels.moe.reference_routes import plan_routes
from planfreeze.kernels.moe.route_plan import RoutePlanPayload

SIZES = Sizes(experts=3, hidden=256, intermediate=64, top_k=2)
TOKENS = 20
ROUNDED = {tl.float8e4nv: (torch.float8_e4m3fn, np.uint8), tl.bfloat16: (torch.bfloat16, np.uint16)}
cut = interpreter._convert_float


def convert(values: Any, source: Any, target: Any, mode: Any) -> Any:
    """Convert as the device does."""
    if source != tl.float32 or target not in ROUNDED:
        return cut(values, source, target, mode)
    dtype, bits = ROUNDED[target]
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
    return rounded.view(torch.uint8 if bits == np.uint8 else torch.int16).numpy().view(bits)


class Session:
    """Hands out the reference of ``route_plan``."""

    def program(self, payload: RoutePlanPayload) -> Any:
        """Return what binds like the program."""

        def bind(ids: torch.Tensor, factors: torch.Tensor, *operands: Any) -> Any:
            def launch() -> None:
                found = plan_routes(ids, factors, payload.experts, payload.tile_m, len(ids))
                names = ("token_map", "row_weight", "tile_expert", "tile_valid", "tile_count")
                for name, table in zip(names, operands, strict=False):
                    table.copy_(getattr(found, name))

            return SimpleNamespace(launch=launch)

        return SimpleNamespace(bind=bind)


def main() -> None:
    """Print the error."""
    interpreter._convert_float = convert
    inputs.DEVICE = scaled_layer.DEVICE = "cpu"
    weights = inputs.synthetic_weights(SIZES, 1)
    call = inputs.make_inputs(SIZES, TOKENS, 1, 3)[0]
    found = scaled_layer.ScaledLayer(Session(), weights, "sm_90a").bind(call)()
    codes = (weights.w13, weights.w13_scales, weights.w2, weights.w2_scales)
    expected = grouped_layer(call.x, *codes, call.ids, call.factors).double()
    sys.stdout.write(f"{float((found.double() - expected).norm() / expected.norm())}\n")


if __name__ == "__main__":
    main()
