"""Timings on a device: CUDA graphs, interleaved, medians; and the host's side of a launch."""

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from checks import DEVICE, fc1_payload, fc2_payload, generator
from layer import ARCH, Projection, random_routes, serving_scales
from torch import Tensor

from planfreeze.kernels.moe import reference
from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.geometry import intermediate_bytes, projection_parts
from planfreeze.kernels.moe.reference_routes import plan_routes
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.routing import max_m_tiles, rows_cap
from planfreeze.kernels.moe.rules import choose_tile_m
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.inline import encode
from planfreeze.kernels.scales.native import native_plane
from planfreeze.sessions import Session

ROUNDS = 60
CALLS = 20
ROUTINGS = 5


def median_us(arms: dict[str, list[Callable[[], None]]]) -> dict[str, dict[str, float]]:
    """Time each arm's calls as one graph of 20, arms interleaved round by round; microseconds a call."""
    graphs = {name: capture(calls) for name, calls in arms.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3 / CALLS)
    return {name: spread(values[ROUNDS // 10 :]) for name, values in times.items()}


def capture(calls: list[Callable[[], None]]) -> torch.cuda.CUDAGraph:
    """Capture 20 calls, taken in turn."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            calls[i % len(calls)]()
    return graph


def spread(values: list[float]) -> dict[str, float]:
    """Return median, and the 10th and 90th percentile."""
    ordered = sorted(values)
    return {
        "median": statistics.median(values),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[len(ordered) * 9 // 10],
    }


Binder = Callable[[Session, Projection, Tensor], dict[str, Callable[[], None]]]


def time_projection(session: Session, layer: Projection, bind: Binder) -> dict[str, Any]:
    """Time both forms at 1, 3 and 8 tokens over five routings; the floor counts each routed expert once."""
    figures = {}
    sizes = layer.sizes
    for tokens in (1, 3, 8):
        arms: dict[str, list[Callable[[], None]]] = {"inline": [], "native": []}
        experts_read = []
        for seed in range(ROUTINGS):
            ids = random_routes(tokens, sizes.experts, sizes.top_k, generator(100 + seed))
            experts_read.append(ids.unique().numel())
            for name, call in bind(session, layer, ids).items():
                arms[name].append(call)
        timed = median_us(arms)
        for name, scales in (("inline", layer.inline.storage), ("native", layer.native)):
            expert_bytes = (layer.words.numel() + scales.numel()) / sizes.experts
            timed[name]["floor_bytes"] = statistics.mean(experts_read) * expert_bytes
        figures[str(tokens)] = timed
    return figures


def forms(layer: Projection) -> tuple[tuple[str, tuple[Tensor, ...]], ...]:
    """Return both forms of a projection's scales as kernels take them."""
    return ("inline", layer.inline.parts()), ("native", (layer.native,))


def bind_fc1(session: Session, layer: Projection, ids: Tensor) -> dict[str, Callable[[], None]]:
    """Bind both forms of the first projection to random activations."""
    sizes, tokens, pairs, seed = layer.sizes, ids.shape[0], ids.numel(), generator(3)
    a8 = torch.randint(0, 120, (tokens, sizes.hidden), generator=seed, device=DEVICE, dtype=torch.uint8)
    a_scale = torch.rand(tokens, sizes.hidden // 32, generator=seed, device=DEVICE)
    out = torch.empty(projection_parts(ARCH, sizes.hidden), pairs, 2 * sizes.intermediate, device=DEVICE)
    calls = {}
    for name, scales in forms(layer):
        program = session.program(fc1_payload(sizes, 64, csf_inline=name == "inline"))
        bound = program.bind(a8, a_scale, layer.words, *scales, ids, out, pairs, sizes.experts)
        calls[name] = bound.launch
    return calls


def bind_fc2(session: Session, layer: Projection, ids: Tensor) -> dict[str, Callable[[], None]]:
    """Bind both forms of the second projection to a random intermediate."""
    sizes, pairs, seed = layer.sizes, ids.numel(), generator(3)
    activations = torch.randn(pairs, sizes.intermediate, generator=seed, device=DEVICE).bfloat16()
    buffer = reference.arrange_intermediate(*reference.quantise_intermediate(activations), ARCH, pairs)
    weights, alpha = torch.rand(pairs, generator=seed, device=DEVICE), torch.ones(sizes.experts, device=DEVICE)
    out = torch.empty(pairs, sizes.hidden, dtype=torch.bfloat16, device=DEVICE)
    calls = {}
    for name, scales in forms(layer):
        program = session.program(fc2_payload(sizes, 64, csf_inline=name == "inline"))
        bound = program.bind(buffer, layer.words, *scales, ids, weights, alpha, out, pairs, sizes.experts, pairs)
        calls[name] = bound.launch
    return calls


def time_grouped(session: Session, w13: Projection, w2: Projection) -> dict[str, Any]:
    """Time the grouped kernels with the rules' rows of a tile, over three routings, both forms side by side."""
    figures = {}
    sizes = w13.sizes
    for tokens in (64, 128, 512, 1024, 1536, 4096):
        tile_m = choose_tile_m(ARCH, tokens)
        arms: dict[str, list[Callable[[], None]]] = {}
        experts_read = []
        for seed in range(3):
            ids = random_routes(tokens, sizes.experts, sizes.top_k, generator(100 + seed))
            experts_read.append(ids.unique().numel())
            for name, call in bind_grouped(session, w13, w2, ids, tile_m).items():
                arms.setdefault(name, []).append(call)
        timed = median_us(arms)
        for name, layer in (("split_fc1", w13), ("split_fc2", w2)):
            for form, scales in (("inline", layer.inline.storage), ("native", layer.native)):
                expert_bytes = (layer.words.numel() + scales.numel()) / sizes.experts
                timed[f"{name} {form}"]["floor_bytes"] = statistics.mean(experts_read) * expert_bytes
        figures[str(tokens)] = {"tile_m": tile_m, **timed}
    return figures


def bind_grouped(
    session: Session, w13: Projection, w2: Projection, ids: Tensor, tile_m: int
) -> dict[str, Callable[[], None]]:
    """Bind routing and both projections, each in both forms of scales."""
    sizes, tokens, pairs, seed = w13.sizes, ids.shape[0], ids.numel(), generator(3)
    factors = torch.rand(ids.shape, generator=seed, device=DEVICE)
    routes = plan_routes(ids, factors, sizes.experts, tile_m, tokens)
    rows = rows_cap(pairs, experts=sizes.experts, tile_m=tile_m)
    m_tiles = max_m_tiles(pairs, experts=sizes.experts, tile_m=tile_m)
    a8 = torch.randint(0, 120, (tokens, sizes.hidden), generator=seed, device=DEVICE, dtype=torch.uint8)
    a_scale = torch.rand(tokens, sizes.hidden // 32, generator=seed, device=DEVICE)
    alpha = torch.ones(sizes.experts, device=DEVICE)
    size_bytes = intermediate_bytes(ARCH, rows, sizes.intermediate)
    intermediate = torch.zeros(size_bytes, dtype=torch.uint8, device=DEVICE)
    out = torch.empty(pairs, sizes.hidden, dtype=torch.bfloat16, device=DEVICE)
    tiles = (routes.tile_expert, routes.tile_valid, routes.tile_count)
    scratch = [torch.empty_like(table) for table in (routes.token_map, routes.row_weight, *tiles)]
    route_plan = RoutePlanPayload(experts=sizes.experts, top_k=sizes.top_k, tile_m=tile_m, id_bits=64)
    route = session.program(route_plan).bind(ids, factors, *scratch, out, pairs, sizes.hidden, rows, m_tiles)
    calls = {"route_plan": route.launch}
    for form, scales in forms(w13):
        payload = SplitFc1Payload(
            hidden=sizes.hidden,
            intermediate=sizes.intermediate,
            top_k=sizes.top_k,
            tile_m=tile_m,
            csf_inline=form == "inline",
        )
        tables = (routes.token_map, *tiles, alpha, intermediate, tokens, sizes.experts, rows, m_tiles)
        calls[f"split_fc1 {form}"] = session.program(payload).bind(a8, a_scale, w13.words, *scales, *tables).launch
    for form, scales in forms(w2):
        payload2 = SplitFc2Payload(
            hidden=sizes.hidden, intermediate=sizes.intermediate, tile_m=tile_m, csf_inline=form == "inline"
        )
        tables2 = (routes.token_map, routes.row_weight, *tiles, alpha, out, pairs, sizes.experts, rows, m_tiles)
        calls[f"split_fc2 {form}"] = session.program(payload2).bind(intermediate, w2.words, *scales, *tables2).launch
    return calls


def time_expand(session: Session, payloads: tuple[ExpandPayload, ...]) -> dict[str, Any]:
    """Time the expansion of one layer: both projections, over realistic scales."""
    calls, moved = [], 0
    for payload in payloads:
        plane = native_plane(payload.geometry, serving_scales(payload.geometry, payload.experts, generator(11)))
        inline = encode(payload.geometry, plane)
        moved += inline.storage.numel() + plane.numel()
        calls.append(session.program(payload).bind(inline.storage, plane, payload.experts * payload.geometry.tiles))

    def call() -> None:
        for bound in calls:
            bound.launch()

    return {**median_us({"expand": [call]})["expand"], "floor_bytes": moved}


def time_encode(geometries: tuple[ScaleGeometry, ...], experts: int) -> dict[str, float]:
    """Time encoding one layer's planes into inline storage, in milliseconds of wall time."""
    planes = [native_plane(geometry, serving_scales(geometry, experts, generator(11))) for geometry in geometries]
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for geometry, plane in zip(geometries, planes, strict=True):
            encode(geometry, plane)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return spread(times[1:])


def time_small(session: Session, hidden: int, top_k: int) -> dict[str, Any]:
    """Time the quantiser and the route sum at 8 and 1536 tokens."""
    figures = {}
    for tokens in (8, 1536):
        x = torch.randn(tokens * top_k, hidden, device=DEVICE).bfloat16()
        a8 = torch.empty(tokens, hidden, dtype=torch.uint8, device=DEVICE)
        scale = torch.empty(tokens, hidden // 32, device=DEVICE)
        out = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=DEVICE)
        quantise = session.program(ActQuantPayload(hidden=hidden)).bind(x, a8, scale, tokens)
        total = session.program(TopkSumPayload(hidden=hidden, top_k=top_k)).bind(x, out, tokens)
        figures[str(tokens)] = median_us({"act_quant": [quantise.launch], "topk_sum": [total.launch]})
    return figures


def time_launch(session: Session, hidden: int, top_k: int) -> dict[str, Any]:
    """Time the host's side of a launch: bound, checked, and the bare driver call with packed parameters."""
    rows = torch.zeros(top_k, hidden, dtype=torch.bfloat16, device=DEVICE)
    out = torch.zeros(1, hidden, dtype=torch.bfloat16, device=DEVICE)
    payload = TopkSumPayload(hidden=hidden, top_k=top_k)
    program = session.program(payload)
    bound = program.bind(rows, out, 1)
    driver, info = program.device.driver, program.launch_info
    words = (ctypes.c_int64 * 3)(rows.data_ptr(), out.data_ptr(), 1)
    packed = (ctypes.c_void_p * 3)(*(ctypes.addressof(words) + 8 * i for i in range(3)))
    address, function, stream = ctypes.addressof(packed), program._function, torch.cuda.current_stream().cuda_stream
    sizes = (*bound.grid, *info.block, info.shared_bytes)
    arms = {
        "driver": lambda: driver.cuLaunchKernel(function, *sizes, stream, address, 0),
        "bound": bound.launch,
        "checked": lambda: program.launch(rows, out, 1),
        "look_up": lambda: session.program(payload),
    }
    names = {payload.digest: 1}
    text = str(payload.digest)
    arms["dict"] = lambda: names[text]
    return {name: spread([host_us(call) for _ in range(15)]) for name, call in arms.items()}


def host_us(call: Callable[[], Any], calls: int = 500) -> float:
    """Return the host's microseconds a call; the device keeps up."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed = time.perf_counter() - started
    torch.cuda.synchronize()
    return elapsed / calls * 1e6
