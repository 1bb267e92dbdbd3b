"""Decode with an MoE layer whose kernels were built elsewhere, and prove that it is right.

On a machine with compilers:

    planfreeze build --model ds41 --tp 4 --arch sm_90a --arms all --store STORE

On the machine with the GPU, which needs none:

    python examples/micro_decode.py --model ds41 --tp 4 --store STORE

A random layer is prepared twice, with compressed scales (inline) and with plain ones (native). For several live token
counts a CUDA graph of each is captured and replayed with changing inputs. Both have to agree bit for bit, and with a
float64 reference to 4e-3; no replay may allocate, and nothing may compile. The exit status is 1 where that does not
hold, 6 without a GPU.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import planfreeze
from planfreeze.device import Device, current_arch
from planfreeze.errors import DeviceMissing, PlanfreezeError
from planfreeze.kernels.moe import reference
from planfreeze.kernels.moe.experts import PreparedExperts, prepare_experts
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.kernels.moe.plan import declare
from planfreeze.kernels.moe.rules import ShardedModel, shard
from planfreeze.models import Model, PlanOptions, load_model
from planfreeze.settings import read_settings, store_path
from planfreeze.target import target

TOLERANCE = 4e-3
REPLAYS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Logical weights of a layer, up rows first, as :func:`prepare_experts` takes them."""

    w13: Tensor
    w13_scales: Tensor
    w2: Tensor
    w2_scales: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one live token count showed."""

    tokens: int
    is_same: bool
    error: float
    allocations: int

    @property
    def is_right(self) -> bool:
        """Whether it is as it has to be."""
        return self.is_same and self.error <= TOLERANCE and self.allocations == 0


def make_weights(sharded: ShardedModel, generator: torch.Generator) -> Weights:
    """Draw random weights: scales of two neighbouring values per row, with outliers."""
    model, columns = sharded.model, sharded.intermediate

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(
            low, high + 1, (model.experts, *shape), generator=generator, device=generator.device, dtype=torch.uint8
        )

    def draw_scales(rows: int, width: int) -> Tensor:
        scales = draw(120, 125, rows, 1) + draw(0, 1, rows, width)
        scales.view(-1)[::97] += 2
        scales[:, rows // 2 : rows // 2 + 4] = draw(116, 126, 4, width)
        return scales

    return Weights(
        w13=draw(0, 255, 2 * columns, model.hidden // 2),
        w13_scales=draw_scales(2 * columns, model.hidden // 32),
        w2=draw(0, 255, model.hidden, columns // 2),
        w2_scales=draw_scales(model.hidden, columns // 32),
    )


def prepare(weights: Weights, arch: str, *, is_inline: bool) -> PreparedExperts:
    """Prepare the layer as compressed weights are, or as weights whose scales never were."""
    return prepare_experts(
        w13=weights.w13,
        w13_scales=weights.w13_scales,
        w2=weights.w2,
        w2_scales=weights.w2_scales,
        arch=arch,
        weight_format="mxfp4_csf" if is_inline else "mxfp4",
        is_csf_inline=is_inline,
    )


class Call:
    """One live token count: its inputs, and a captured graph of each layer over them."""

    def __init__(self, layers: tuple[MoELayer, ...], tokens: int, generator: torch.Generator) -> None:
        model = layers[0].plan.sharded.model
        self.model, self.layers, self.generator = model, layers, generator
        self.x = torch.empty(tokens, model.hidden, dtype=torch.bfloat16, device="cuda")
        self.ids = torch.zeros(tokens, model.top_k, dtype=torch.int32, device="cuda")
        self.factors = torch.empty(tokens, model.top_k, device="cuda")
        self.outs = [torch.empty_like(self.x) for _ in layers]
        self.graphs = [torch.cuda.CUDAGraph() for _ in layers]
        for layer, out, graph in zip(layers, self.outs, self.graphs, strict=True):
            with torch.cuda.graph(graph):
                layer.run(self.x, self.ids, self.factors, out)

    def change_inputs(self) -> None:
        """Draw new activations, routes and factors into the tensors that the graphs read."""
        seed, device = self.generator, self.generator.device
        self.x.copy_(0.1 * torch.randn(self.x.shape, generator=seed, device=device))
        ranks = torch.rand(len(self.x), self.model.experts, generator=seed, device=device)
        self.ids.copy_(ranks.argsort(1)[:, : self.model.top_k])
        self.factors.copy_(torch.randn(self.factors.shape, generator=seed, device=device).softmax(-1))

    def poison(self) -> None:
        """Fill scratch and results with bytes that must not survive."""
        for layer, out in zip(self.layers, self.outs, strict=True):
            layer.workspace.fill_(0xFF)
            out.fill_(torch.nan)

    def replay(self) -> int:
        """Replay every graph and return how many allocations torch counted meanwhile."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        for graph in self.graphs:
            graph.replay()
        torch.cuda.synchronize()
        allocated: int = torch.cuda.memory_stats()["allocation.all.allocated"] - before
        return allocated


def check_call(call: Call, weights: Weights, experts: PreparedExperts) -> Row:
    """Replay a call over changing inputs and compare every result."""
    is_same, error, allocations = True, 0.0, 0
    for _ in range(REPLAYS):
        call.change_inputs()
        call.poison()
        allocations += call.replay()
        found = [out.view(torch.int16) for out in call.outs]
        is_same = is_same and all(torch.equal(found[0], other) for other in found[1:])
        wanted = reference.micro_layer(
            call.x,
            weights.w13,
            weights.w13_scales,
            weights.w2,
            weights.w2_scales,
            call.ids,
            call.factors,
            alpha1=experts.alpha1,
            alpha2=experts.alpha2,
            limit=call.model.activation_limit,
        ).double()
        differences = [float((out.double() - wanted).norm() / wanted.norm()) for out in call.outs]
        # A NaN compares false with everything: it has to end up as the error, not beside it.
        error = max(error, *(difference if difference == difference else float("inf") for difference in differences))
    return Row(tokens=len(call.x), is_same=is_same, error=error, allocations=allocations)


def decode(model: Model, *, tp: int, store: Path, capacity: int, is_trusted: bool | None) -> bool:
    """Bind both layers, check every live count, write the table; tell whether all is right."""
    arch = current_arch()
    if arch is None:
        # Says what is missing; a device of an architecture without kernels comes back.
        raise DeviceMissing(f"there are no kernels for {Device().name}")
    sharded, limit = shard(model, tp), read_settings().csf_inline_max_tokens
    generator = torch.Generator("cuda").manual_seed(0)
    weights = make_weights(sharded, generator)
    with planfreeze.session(f"{model.name}-tp{tp}-{arch}", store=store, is_trusted=is_trusted) as session:
        session.freeze()
        layers = []
        for arm in ("inline", "native"):
            options = PlanOptions(inline_limit=limit, capacities=(capacity,), arms=(arm,))
            plan = declare(model, tp=tp, target=target(arch), options=options)
            layers.append(bind(plan, session, prepare(weights, arch, is_inline=arm == "inline")))
        counts = sorted({tokens for tokens in (1, 3, capacity // 2 + 1, capacity) if tokens <= capacity})
        rows = [check_call(Call(tuple(layers), n, generator), weights, layers[0].experts) for n in counts]
        compiled = sum(session.attempts.values())
    write_table(rows, f"{model.name} tp{tp} {arch}: {compiled} compiled")
    return compiled == 0 and all(row.is_right for row in rows)


def write_table(rows: list[Row], title: str) -> None:
    """Write what was found to standard output."""
    sys.stdout.write(f"{title}\n{'live':>6} {'inline = native':>16} {'error':>10} {'allocations':>12}\n")
    for row in rows:
        same = "bit for bit" if row.is_same else "DIFFERENT"
        sys.stdout.write(f"{row.tokens:6} {same:>16} {row.error:10.2e} {row.allocations:12}\n")


def main() -> int:
    """Run the example and return its exit status."""
    parser = argparse.ArgumentParser(description="Decode with kernels that were built elsewhere, and check them.")
    parser.add_argument("--model", default="ds41", help="catalog name or file")
    parser.add_argument("--tp", type=int, default=4, help="ranks the model is divided over")
    parser.add_argument("--store", type=Path, help="store with the model's plan, built with --arms all")
    parser.add_argument("--capacity", type=int, default=8, help="largest number of live tokens, up to 8")
    parser.add_argument("--trust-store", action="store_true", help="take the plan whoever owns the store")
    asked = parser.parse_args()
    try:
        is_right = decode(
            load_model(asked.model),
            tp=asked.tp,
            store=asked.store or store_path(read_settings()),
            capacity=asked.capacity,
            is_trusted=asked.trust_store or None,
        )
    except PlanfreezeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
