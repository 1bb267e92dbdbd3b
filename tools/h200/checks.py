"""Checks of every family on a device. Each returns what it compared and the figures it read."""

from typing import Any

import torch
from layer import ARCH, Projection, Sizes, exceptional_scales, make_w13, random_routes
from torch import Tensor

from planfreeze.kernels.moe import reference
from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.geometry import intermediate_bytes, projection_parts
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.sessions import Session

DEVICE = "cuda"
POISON = 0xFF
TOLERANCE = 4e-3  # relative L2 against the float64 reference with the kernels' own roundings
LIVE_TOKENS = (1, 3, 8)
ID_TYPES = {32: torch.int32, 64: torch.int64}


class Disagreement(Exception):
    """A kernel's result is not the expected one."""


def require(holds: bool, what: str) -> None:
    """Raise Disagreement unless something holds."""
    if not holds:
        raise Disagreement(what)


def generator(seed: int) -> torch.Generator:
    """Make the generator of one check."""
    return torch.Generator(DEVICE).manual_seed(seed)


def relative_l2(found: Tensor, expected: Tensor) -> float:
    """Return the relative L2 error, accumulated in float64."""
    difference = found.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def check_act_quant(session: Session, payload: ActQuantPayload) -> dict[str, Any]:
    """Quantise random rows, zero blocks, huge and tiny ones; bytes and scales equal the reference's."""
    program = session.program(payload)
    for tokens in (1, 3, 8, 129, 1536):
        x = torch.randn(tokens, payload.hidden, generator=generator(tokens), device=DEVICE).bfloat16()
        x.view(-1, 32)[::7] = 0
        x.view(-1, 32)[3::11] *= 1e30
        x.view(-1, 32)[5::13] *= 1e-38
        a8 = torch.full((tokens, payload.hidden), POISON, dtype=torch.uint8, device=DEVICE)
        scale = torch.full((tokens, payload.hidden // 32), torch.nan, device=DEVICE)
        program.bind(x, a8, scale, tokens).launch()
        expected, expected_scale = quantised(x)
        require(torch.equal(a8, expected), f"payload of {tokens} tokens differs in {int((a8 != expected).sum())} bytes")
        require(torch.equal(scale, expected_scale), f"scales of {tokens} tokens differ")
    return {"compared_with": "torch reference, bit for bit"}


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reference's activations in this architecture's order, and their scale plane."""
    payload, scales = reference.quantise_mxfp8(x)
    return reference.arrange_activations(payload, ARCH), reference.activation_scales(scales, ARCH)


def check_topk_sum(session: Session, payload: TopkSumPayload) -> dict[str, Any]:
    """Sum random route rows; the result equals fp32 sums in route order."""
    for tokens in (1, 3, 8, 129, 1536):
        rows = torch.randn(
            tokens * payload.top_k, payload.hidden, generator=generator(tokens), device=DEVICE
        ).bfloat16()
        out = torch.full((tokens, payload.hidden), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        session.program(payload).bind(rows, out, tokens).launch()
        require(same_bits(out, reference.sum_routes(rows, payload.top_k)), f"sums of {tokens} tokens differ")
    return {"compared_with": "torch reference, bit for bit"}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare tensors byte by byte: NaN equals itself, 0 is not -0."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def check_micro_fc1(
    session: Session, layer: Projection, inline: MicroFc1Payload, native: MicroFc1Payload
) -> dict[str, Any]:
    """Compare inline with native bit for bit and both with float64, eagerly and in a CUDA graph.

    1, 3 and 8 live tokens, random ids with one out of range. In the graph: poisoned results, changed inputs.
    """
    errors = []
    for tokens in LIVE_TOKENS:
        call = MicroCall(session, layer, inline, native, tokens)
        call.run()
        errors.append(call.compare())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call.run()
        for _ in range(3):
            call.change_inputs()
            call.poison()
            allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
            graph.replay()
            torch.cuda.synchronize()
            require(torch.cuda.memory_stats()["allocation.all.allocated"] == allocated, "a replay allocated memory")
            errors.append(call.compare())
    return {
        "compared_with": "the other form of scales bit for bit, float64 reference",
        "live_tokens": LIVE_TOKENS,
        "relative_l2_max": max(errors),
        "tolerance": TOLERANCE,
    }


class MicroCall:
    """One call of the quantiser and of both forms of the first projection, over buffers of its own."""

    def __init__(
        self, session: Session, layer: Projection, inline: MicroFc1Payload, native: MicroFc1Payload, tokens: int
    ) -> None:
        self.layer = layer
        pairs, columns = tokens * layer.sizes.top_k, 2 * layer.sizes.intermediate
        seed = generator(tokens)
        self.x = 0.1 * torch.randn(tokens, layer.sizes.hidden, generator=seed, device=DEVICE).bfloat16()
        self.ids = random_routes(tokens, layer.sizes.experts, layer.sizes.top_k, seed).to(ID_TYPES[inline.id_bits])
        self.a8 = torch.empty(tokens, layer.sizes.hidden, dtype=torch.uint8, device=DEVICE)
        self.a_scale = torch.empty(tokens, layer.sizes.hidden // 32, device=DEVICE)
        self.found = torch.empty(2, projection_parts(ARCH, layer.sizes.hidden), pairs, columns, device=DEVICE)
        self.poison()
        quantise = session.program(ActQuantPayload(hidden=layer.sizes.hidden))
        activations = (self.a8, self.a_scale, layer.words)
        self.bound = (
            quantise.bind(self.x, self.a8, self.a_scale, tokens),
            session.program(inline).bind(
                *activations, *layer.inline.parts(), self.ids, self.found[0], pairs, layer.sizes.experts
            ),
            session.program(native).bind(
                *activations, layer.native, self.ids, self.found[1], pairs, layer.sizes.experts
            ),
        )

    def run(self) -> None:
        """Launch everything on the current stream."""
        for bound in self.bound:
            bound.launch()

    def poison(self) -> None:
        """Fill what the kernels write with values that must not survive."""
        self.a8.fill_(POISON)
        self.a_scale.fill_(torch.nan)
        self.found.fill_(torch.nan)

    def change_inputs(self) -> None:
        """Negate the activations and move every route to the next expert; then take one id out of range."""
        self.x.neg_()
        self.ids.add_(1).remainder_(self.layer.sizes.experts)
        self.ids.view(-1)[-1] = self.layer.sizes.experts

    def compare(self) -> float:
        """Return the relative L2 error; raise when the forms differ, or it is beyond the tolerance."""
        torch.cuda.synchronize()
        inline, native = self.found
        require(same_bits(inline, native), f"inline and native differ in {int((inline != native).sum())} places")
        expected = reference.micro_fc1(self.x, self.layer.codes, self.layer.scales, self.ids)
        skipped = expected[:, 0].isnan()
        require(bool(inline[:, skipped].isnan().all()), "a row of an invalid route was written")
        live, wanted = inline[:, ~skipped].sum(0), expected[~skipped]
        require(bool(live.isfinite().all()) and bool(live.any()), "results are not finite, or all zero")
        error = relative_l2(live, wanted)
        require(error <= TOLERANCE, f"relative L2 error {error:.3e} against float64")
        return error


def check_micro_layer(session: Session, sizes: Sizes) -> dict[str, Any]:
    """Check one model's first projection for both id types."""
    layer = make_w13(sizes, generator(7), exceptional_scales)
    found = []
    for bits in ID_TYPES:
        inline, native = (fc1_payload(sizes, bits, csf_inline=csf_inline) for csf_inline in (True, False))
        found.append(check_micro_fc1(session, layer, inline, native))
    return max(found, key=lambda figures: figures["relative_l2_max"])


def fc1_payload(sizes: Sizes, bits: int, *, csf_inline: bool) -> MicroFc1Payload:
    """Return a variant of the first projection."""
    return MicroFc1Payload(
        hidden=sizes.hidden,
        intermediate=sizes.intermediate,
        top_k=sizes.top_k,
        id_bits=bits,
        csf_inline=csf_inline,
    )


def fc2_payload(sizes: Sizes, bits: int, *, csf_inline: bool) -> MicroFc2Payload:
    """Return a variant of the second projection."""
    return MicroFc2Payload(hidden=sizes.hidden, intermediate=sizes.intermediate, id_bits=bits, csf_inline=csf_inline)


def spoilt_routes(sizes: Sizes, tokens: int, bits: int) -> Tensor:
    """Draw routes of which one in the middle and the last are out of range."""
    ids = random_routes(tokens, sizes.experts, sizes.top_k, generator(tokens)).to(ID_TYPES[bits])
    ids.view(-1)[ids.numel() // 2] = -1
    ids.view(-1)[-1] = sizes.experts
    return ids


def check_micro_act(session: Session, sizes: Sizes, payload: MicroActPayload) -> dict[str, Any]:
    """Add, activate and quantise random projections; bytes equal the reference's but for rare roundings."""
    different = total = 0
    for tokens in LIVE_TOKENS:
        ids = spoilt_routes(sizes, tokens, payload.id_bits)
        pairs, rows = ids.numel(), ids.numel() + 5
        columns = 2 * sizes.intermediate
        seed, count = generator(tokens), projection_parts(ARCH, sizes.hidden)
        parts = 3 * torch.randn(count, pairs, columns, generator=seed, device=DEVICE)
        alpha = 0.5 + torch.rand(sizes.experts, generator=seed, device=DEVICE)
        size_bytes = intermediate_bytes(ARCH, rows, sizes.intermediate)
        buffer = torch.full((size_bytes,), POISON, dtype=torch.uint8, device=DEVICE)
        session.program(payload).bind(parts, ids, alpha, buffer, pairs, sizes.experts, rows).launch()
        projections = reference.join_parts(parts, ids, alpha)
        activations = reference.micro_activation(projections, ids, sizes.experts)
        is_live = ~activations[:, 0].isnan()
        expected = reference.arrange_intermediate(*reference.quantise_intermediate(activations), ARCH, rows)
        (found, found_scales), (wanted, wanted_scales) = (
            reference.intermediate_planes(each, ARCH, rows, sizes.intermediate) for each in (buffer, expected)
        )
        untouched = torch.cat((found[:pairs][~is_live].flatten(), found[pairs:].flatten()))
        require(bool((untouched == POISON).all()), "a row of an invalid or absent route was written")
        live, live_wanted = found[:pairs][is_live], wanted[:pairs][is_live]
        require(torch.equal(found_scales[:pairs][is_live], wanted_scales[:pairs][is_live]), "scales differ")
        different += int((live != live_wanted).sum())
        total += live.numel()
    require(different <= total * 1e-3, f"{different} of {total} bytes differ")
    return {"compared_with": "float64 reference", "bytes": total, "bytes_one_rounding_off": different}


def check_micro_fc2(session: Session, layer: Projection, bits: int) -> dict[str, Any]:
    """Compare inline with native bit for bit and both with float64, from the reference's own intermediate."""
    sizes = layer.sizes
    errors = []
    for tokens in LIVE_TOKENS:
        seed = generator(tokens)
        ids = spoilt_routes(sizes, tokens, bits)
        pairs, rows = ids.numel(), ids.numel() + 5
        activations = torch.randn(pairs, sizes.intermediate, generator=seed, device=DEVICE).bfloat16()
        quantised = reference.quantise_intermediate(activations)
        buffer = reference.arrange_intermediate(*quantised, ARCH, rows)
        weights = torch.rand(pairs, generator=seed, device=DEVICE)
        alpha = 0.5 + torch.rand(sizes.experts, generator=seed, device=DEVICE)
        found = torch.full((2, pairs, sizes.hidden), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        for out, csf_inline, scales in ((found[0], True, layer.inline.parts()), (found[1], False, (layer.native,))):
            program = session.program(fc2_payload(sizes, bits, csf_inline=csf_inline))
            routes = (ids, weights, alpha)
            program.bind(buffer, layer.words, *scales, *routes, out, pairs, sizes.experts, rows).launch()
        torch.cuda.synchronize()
        require(
            same_bits(found[0], found[1]), f"inline and native differ in {int((found[0] != found[1]).sum())} places"
        )
        expected = reference.micro_fc2(*quantised, layer.codes, layer.scales, ids, weights, alpha=alpha)
        is_skipped = ((ids < 0) | (ids >= sizes.experts)).view(-1)
        require(not bool(found[0][is_skipped].any()), "a row of an invalid route is not zero")
        require(bool(found[0].isfinite().all()) and bool(found[0].any()), "results are not finite, or all zero")
        errors.append(relative_l2(found[0], expected))
        require(errors[-1] <= TOLERANCE, f"relative L2 error {errors[-1]:.3e} against float64")
    return {
        "compared_with": "the other form of scales bit for bit, float64 reference",
        "live_tokens": LIVE_TOKENS,
        "relative_l2_max": max(errors),
        "tolerance": TOLERANCE,
    }
