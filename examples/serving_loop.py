"""Serve forty layers from a frozen session: what the main loop of an engine does with planfreeze.

On a machine with compilers:

    planfreeze build --model ds41 --tp 4 --arch sm_90a --arms all --store STORE

On the machine with the GPU, which needs none:

    python examples/serving_loop.py --model ds41 --tp 4 --store STORE

``--small`` serves four layers of ``tests/gpu/models/layer_1024_320.toml`` on one rank; build with that file and --tp 1.

Read it from top to bottom: a step is the layers over one number of tokens, captured once as a CUDA graph; a request is
one step of a decoding batch, or the chunks of a prompt; :func:`serve` opens the session, and serves every arm, one
after the other. Weights, routers and tokens are random. Attention is left out, and so is the head: tokens per second
are those of norm, router and experts, and the next tokens come from a list that was drawn before. (A random model that
reads its own words soon repeats one, and takes the same experts for it.)

The exit status is 1 where something compiled, allocated on the device, launched what was not planned, or differs
between arms by a bit; 6 without a GPU, 3 without the plan in the store.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

import torch
from serving_figures import ArmFigures, Memory, Report, Served, write_report
from serving_weights import count_weight_sets, prepare_layers
from serving_work import Request, Work, plan_arms, plan_work, read_arguments
from torch import Tensor

import planfreeze
from planfreeze.device import Device, current_arch
from planfreeze.errors import DeviceMissing, PlanfreezeError
from planfreeze.kernels.moe.op import MoELayer, bind
from planfreeze.kernels.moe.plan import MoEPlan
from planfreeze.models import Model, load_model
from planfreeze.sessions import Session
from planfreeze.settings import read_settings, store_path

VOCABULARY = 16384
FEWEST_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """What all arms have in common: embedding and routers in bf16, and the tokens to come."""

    embedding: Tensor
    routers: tuple[Tensor, ...]
    words: Tensor


def draw_trunk(model: Model, work: Work, device: str) -> Trunk:
    """Draw embedding, routers and tokens."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    longest = max(request.tokens for request in work.requests)
    return Trunk(
        embedding=draw(VOCABULARY, model.hidden),
        routers=tuple(draw(model.hidden, model.experts).mul_(model.hidden**-0.5) for _ in range(work.layers)),
        words=torch.randint(VOCABULARY, (2 * longest,), generator=generator, device=device),
    )


def run_layers(x: Tensor, routers: Iterable[Tensor], layers: Iterable[MoELayer], routes: Tensor) -> None:
    """Add the experts of every layer to the residual ``x``, as a model does between its attentions.

    ``routes``, ``(layers, tokens, top_k)``, gets the experts that the routers choose.
    """
    for router, layer, ids in zip(routers, layers, routes, strict=True):
        # Not rms_norm: on this GPU torch 2.13 compiles it at its first call, beside some versions of CuTe DSL.
        normed = torch.nn.functional.layer_norm(x, x.shape[1:])
        scores = torch.empty(ids.shape, device=x.device)
        torch.topk((normed @ router).float(), ids.shape[1], out=(scores, ids))
        layer.run(normed, ids, scores.softmax(-1), out=normed)
        x += normed


class Step:
    """All layers over one number of tokens: the tensors it reads and writes, and its captured graph."""

    def __init__(self, trunk: Trunk, layers: Sequence[MoELayer], tokens: int, pool: tuple[int, int]) -> None:
        self.trunk, self.layers = trunk, layers
        self.words = torch.zeros(tokens, dtype=torch.int64, device="cuda")
        self.x = trunk.embedding.new_empty(tokens, trunk.embedding.shape[1])
        self.routes = self.words.new_empty(len(layers), tokens, layers[0].plan.sharded.model.top_k)
        self.compute()  # cuBLAS sets itself up at its first call, which a capture does not allow
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=torch.cuda.current_stream()):
            self.compute()

    def compute(self) -> None:
        """Launch the step. While a graph is captured, what it allocates comes from the graph's pool."""
        torch.index_select(self.trunk.embedding, 0, self.words, out=self.x)
        run_layers(self.x, self.trunk.routers, self.layers, self.routes)

    def run(self, words: Tensor) -> None:
        """Replay the step over other tokens: one copy and one launch, nothing is allocated or looked up."""
        self.words.copy_(words)
        self.graph.replay()


def serve_arm(session: Session, plan: MoEPlan, trunk: Trunk, work: Work, seconds: float) -> ArmFigures:
    """Prepare the layers of one arm, capture a step for every size, and serve all requests."""
    gc.collect()  # what the arm before left
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    launched = session.statistics().launches
    started = time.perf_counter()
    experts = prepare_layers(plan, count_weight_sets(plan, work.layers, torch.cuda.mem_get_info()[0]), "cuda")
    # The calls of all layers follow each other on one stream, so one scratch is enough for them.
    workspace = torch.empty(plan.scratch.workspace, dtype=torch.uint8, device="cuda")
    bound = [bind(plan, session, prepared, workspace=workspace) for prepared in experts]
    layers = [bound[number % len(bound)] for number in range(work.layers)]
    torch.cuda.synchronize()
    prepare_s = time.perf_counter() - started
    tell(f"{plan.arm}: {work.layers} layers, {len(experts)} sets of weights, ready in {prepare_s:.1f} s")

    # One pool for all graphs: they are replayed one at a time, and what they leave is in tensors of their steps.
    pool = torch.cuda.graph_pool_handle()
    steps = {size: Step(trunk, layers, size, pool) for size in work.sizes}
    # Read here: requests allocate nothing, which is counted, and checking their results does.
    memory = Memory(
        weights=sum(prepared.size_bytes for prepared in experts),
        workspace=workspace.numel(),
        allocated=torch.cuda.memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        peak=torch.cuda.max_memory_allocated(),
        room=torch.cuda.mem_get_info()[0],
    )
    served = [serve_request(request, plan, trunk, steps, work.calls, seconds) for request in work.requests]
    return ArmFigures(
        arm=plan.arm,
        weight_sets=len(experts),
        prepare_s=prepare_s,
        served=tuple(served),
        memory=memory,
        launches=session.statistics().launches - launched,
        expected_launches=sum(2 * work.layers * len(plan.choose(size).stages[0]) for size in work.sizes),
    )


def serve_request(
    request: Request, plan: MoEPlan, trunk: Trunk, steps: dict[int, Step], calls: int, seconds: float
) -> Served:
    """Serve a request again and again, every time over other tokens, and measure it."""

    def serve_once(number: int) -> None:
        first = number * request.tokens % (len(trunk.words) - request.tokens + 1)
        for size in request.sizes:
            steps[size].run(trunk.words[first : first + size])
            first += size

    serve_once(0)
    torch.cuda.synchronize()
    started = time.perf_counter()
    serve_once(1)
    torch.cuda.synchronize()
    fitting = int(seconds / (time.perf_counter() - started))
    times_ms, allocations, segments = measure(serve_once, max(FEWEST_CALLS, min(calls, fitting)))
    serve_once(0)  # the same tokens in every arm, whatever was measured
    last = steps[request.sizes[-1]]
    return Served(
        phase=request.phase,
        tokens=request.tokens,
        chunk=max(request.sizes),
        scale_mode=str(plan.choose(max(request.sizes)).scale_mode),
        calls=len(times_ms),
        median_ms=median(times_ms),
        slow_ms=quantiles(times_ms, n=10, method="inclusive")[-1],
        tokens_per_s=1000 * request.tokens * len(times_ms) / sum(times_ms),
        allocations=allocations,
        segments=segments,
        experts=sum(ids.unique().numel() for ids in last.routes) / len(last.routes),
        is_finite=bool(last.x.isfinite().all()),
        digest=digest_of(last.x),
    )


def measure(serve_once: Callable[[int], None], calls: int) -> tuple[list[float], int, int]:
    """Return the milliseconds of every call on the device, and the tensors and segments that were allocated."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    before = torch.cuda.memory_stats()
    marks[0].record()
    for number, mark in enumerate(marks[1:]):
        serve_once(number)
        mark.record()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    counted = [after[name] - before[name] for name in ("allocation.all.allocated", "segment.all.allocated")]
    return [first.elapsed_time(last) for first, last in pairwise(marks)], *counted


def digest_of(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    found = tensor.cpu()
    return hashlib.sha256(ctypes.string_at(found.data_ptr(), found.nbytes)).hexdigest()


def serve(model: Model, asked: argparse.Namespace) -> Report:
    """Open the session, freeze it, and serve every arm from it."""
    arch = current_arch()
    if arch is None:
        # Says what is missing; a device of an architecture without kernels comes back.
        raise DeviceMissing(f"there are no kernels for {Device().name}")
    plans = plan_arms(model, tp=asked.tp, arch=arch, arms=asked.arms)
    work = plan_work(plans[0], asked)
    name = asked.plan or f"{model.name}-tp{asked.tp}-{arch}"
    store = asked.store or store_path(read_settings())
    with planfreeze.session(name, store=store, is_trusted=asked.trust_store or None) as session:
        session.freeze()  # every program is loaded; from here on a compiler that is reached raises
        with torch.cuda.stream(torch.cuda.Stream()):  # the engine's own; graphs are captured and replayed on it
            trunk = draw_trunk(model, work, "cuda")
            seconds = work.seconds / len(plans) / len(work.requests)
            arms = tuple(serve_arm(session, plan, trunk, work, seconds) for plan in plans)
        seen = session.statistics()
        return Report(
            plan=session.plans[0].name,
            root=session.plans[0].root,
            device=torch.cuda.get_device_name(),
            layers=work.layers,
            arms=arms,
            attempts=dict(seen.attempts),
        )


def tell(line: str) -> None:
    """Say how far it is, beside the results."""
    sys.stderr.write(f"{line}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example and return its exit status."""
    asked = read_arguments(arguments)
    try:
        report = serve(load_model(asked.model), asked)
    except PlanfreezeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(write_report(report))
    if asked.json:
        asked.json.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    return 1 if report.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
