"""The two MXFP4 layers people serve with on Hopper, out of a folder with parts of the wheel vllm==0.24.0.

``_moe_C.so`` is ``vllm/_moe_C_stable_libtorch.abi3.so``, built for torch 2.11; beside it lie ``vllm/scalar_type.py``
and ``vllm/third_party/triton_kernels/``. Their weights are random bytes in their own layouts: they are timed, and their
results say nothing.
Nothing of them belongs to this project.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from h200.layer import Sizes
from moe_bench.inputs import DEVICE, Call, Inputs
from moe_bench.kernels import silu_product
from torch import Tensor

SCALE_BYTES = (118, 122)
TILE_M = (8, 16, 32, 48, 64)
"""Rows of a tile that the first layer's own rule chooses from: the first that stays below nine tenths full."""
FILL = 0.9
FUSED_TOP_K = 4
ACTIVATION_BLOCK = 1024


class Marlin:
    """W4A16: alignment of routes, both products, activation and sum, all in the timed graph."""

    name = "marlin"
    note = "vLLM 0.24, W4A16, random weight bytes; moe_align_block_size, both GEMMs, activation and moe_sum timed"

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        spec = importlib.util.spec_from_file_location("scalar_type", folder / "scalar_type.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules["scalar_type"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        torch.ops.load_library(str(folder / "_moe_C.so"))
        self.op, self.code = torch.ops._moe_C, module.scalar_types.float4_e2m1f.id
        self.sizes = sizes
        experts, hidden, columns = sizes.experts, sizes.hidden, sizes.intermediate
        self.w13, self.w2 = words(experts, hidden // 16, 4 * columns), words(experts, columns // 16, 2 * hidden)
        self.w13_scales = random_scales(experts, hidden // 32, 2 * columns).view(torch.float8_e8m0fnu)
        self.w2_scales = random_scales(experts, columns // 32, hidden).view(torch.float8_e8m0fnu)
        blocks = torch.cuda.get_device_properties(DEVICE).multi_processor_count
        self.locks = torch.zeros(4 * blocks, dtype=torch.int32, device=DEVICE)
        self.scratch: dict[int, tuple[Tensor, ...]] = {}

    def bind(self, inputs: Inputs) -> Call:
        """Return the call over tiles of the rows its own rule chooses."""
        experts, hidden, columns = self.sizes.experts, self.sizes.hidden, self.sizes.intermediate
        tokens, top_k = inputs.ids.shape
        pairs = tokens * top_k
        tile_m = next((rows for rows in TILE_M if pairs / experts / rows < FILL), TILE_M[-1])
        padded = pairs + experts * (tile_m - 1)
        if pairs < experts:
            padded = min(pairs * tile_m, padded)
        order, tile_expert, count = (
            torch.empty(size, dtype=torch.int32, device=DEVICE) for size in (padded, -(-padded // tile_m), 1)
        )
        if tokens not in self.scratch:
            self.scratch = {tokens: tuple(halves(pairs, width) for width in (2 * columns, columns, hidden))}
        projections, middle, routed = self.scratch[tokens]
        out = halves(tokens, hidden)
        routes = (self.locks, order, tile_expert, count, inputs.factors, tile_m)
        none, choice = (None,) * 5, (True, False, True, False, -1, -1, -1)

        def call() -> Tensor:
            op = self.op
            op.moe_align_block_size(inputs.ids, experts, tile_m, order, tile_expert, count, None)
            first = (inputs.x, projections, self.w13, None, self.w13_scales, *none, *routes, top_k, False)
            op.moe_wna16_marlin_gemm(*first, self.code, tokens, 2 * columns, hidden, *choice)
            grid = (pairs, triton.cdiv(columns, ACTIVATION_BLOCK))
            silu_product[grid](projections, middle, columns, ACTIVATION_BLOCK)
            second = (middle, routed, self.w2, None, self.w2_scales, *none, *routes, 1, True)
            op.moe_wna16_marlin_gemm(*second, self.code, pairs, hidden, columns, *choice)
            op.moe_sum(routed.view(tokens, top_k, hidden), out)
            return out

        return call


class TritonKernels:
    """Both products with the activation fused, over routes of its torch routing; its fused routing timed before them.

    Its torch routing waits for the device, so that no graph can hold it. Its fused routing takes a power of two of
    routes a token: the graph holds that of the four largest of six, from a bit matrix packed before, which is less
    work than a call has.
    """

    name = "triton_kernels"

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        from triton_kernels import matmul_ogs, routing, swiglu, topk
        from triton_kernels.matmul_ogs_details import opt_flags

        opt_flags.update_opt_flags_constraints({"split_k": 1})
        self.sizes = sizes
        self.matmul, self.routing, self.topk = matmul_ogs.matmul_ogs, routing, topk.topk
        self.w13, self.w13_precision = self.weights(sizes.hidden, 2 * sizes.intermediate)
        self.w2, self.w2_precision = self.weights(sizes.intermediate, sizes.hidden)
        specs = matmul_ogs.FnSpecs("swiglu", swiglu.swiglu_fn, ("alpha", "limit"))
        self.activation = matmul_ogs.FusedActivation(specs, (1.0, 7.0), 2)
        self.note = (
            "as shipped in vLLM 0.24, bf16 activations, random weight bytes; both GEMMs timed, and its fused routing "
            f"for {FUSED_TOP_K} of the routes (it takes powers of two; its torch routing cannot be captured)"
        )

    def weights(self, width: int, rows: int) -> tuple[Any, Any]:
        """Make random weights and scales in the layouts its own rule chooses for the device."""
        from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
        from triton_kernels.numerics import InFlexData
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        codes = torch.randint(0, 256, (self.sizes.experts, rows, width // 2), dtype=torch.uint8, device=DEVICE)
        scales = random_scales(self.sizes.experts, rows, width // 32)
        chosen, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        weights = convert_layout(wrap_torch_tensor(codes.transpose(-2, -1), dtype=FP4), chosen, **options)
        chosen, options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
        scales = convert_layout(wrap_torch_tensor(scales.transpose(-2, -1)), chosen, **options)
        return weights, PrecisionConfig(weight_scale=scales, flex_ctx=FlexCtx(rhs_data=InFlexData()))

    def bind(self, inputs: Inputs) -> Call:
        """Return the call: fused routing, then both products over the routes of the torch routing."""
        top_k = inputs.ids.shape[1]
        logits = self.logits(inputs)
        routes, gather, scatter = self.routing.routing_torch(logits, top_k, sm_first=False)
        route = self.bind_routing(inputs)

        def call() -> Tensor:
            route()
            first = {"precision_config": self.w13_precision, "fused_activation": self.activation}
            middle = self.matmul(inputs.x, self.w13, None, routes, gather_indx=gather, **first)
            second = {"precision_config": self.w2_precision, "gammas": routes.gate_scal}
            return self.matmul(middle, self.w2, None, routes, scatter_indx=scatter, **second)

        return call

    def bind_routing(self, inputs: Inputs) -> Call:
        """Return the fused routing alone."""
        experts = self.sizes.experts
        top_k = min(FUSED_TOP_K, 1 << (inputs.ids.shape[1].bit_length() - 1))
        factors, order, matrix = self.topk(self.logits(inputs), top_k)
        sums = matrix.scratchpad

        def call() -> None:
            # Its sums start from zero, which its top-k sees to; it drops them once they are used.
            sums.zero_()
            matrix.scratchpad = sums
            self.routing.routing_from_bitmatrix(matrix, factors, order, experts, top_k)

        return call

    def logits(self, inputs: Inputs) -> Tensor:
        """Return logits whose largest are the routes of the call, and whose softmax over them its factors."""
        logits = torch.full((len(inputs.x), self.sizes.experts), -100.0, device=DEVICE)
        return logits.scatter_(1, inputs.ids.long(), inputs.factors.log())


def words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=DEVICE)


def random_scales(*shape: int) -> Tensor:
    return torch.randint(*SCALE_BYTES, shape, dtype=torch.uint8, device=DEVICE)


def halves(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
