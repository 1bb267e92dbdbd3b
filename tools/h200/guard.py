"""Measure on a device what an armed guard costs, and try every road to a compiler once under it.

python tools/h200/guard.py STORE OUT. STORE comes from tools/h200/pack.py, OUT gets guard.json. Compilers have to be
there: what is shown is that they are not reached. The exit status is 1 when a check failed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pack
import torch
from checks import DEVICE, generator
from guard_roads import PREPARE, try_roads
from layer import Sizes, random_routes
from layers import bind_arm, make_weights, prepare_arm
from timings import host_us, spread

import planfreeze
from planfreeze.guard import Guard
from planfreeze.kernels.moe.op import MoELayer
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.models import load_model

LAYERS = 40
TOKENS = (1, 8, 64)
ROUNDS = 40
LAUNCH_ROUNDS = 400


def time_pairs(
    call: Callable[[], Any], measure: Callable[[Callable[[], Any]], float], rounds: int = ROUNDS
) -> dict[str, Any]:
    """Measure a call with the guard off and armed, in turn; return both, and their ratio and difference by round."""
    off, armed = [], []
    for _ in range(rounds):
        off.append(measure(call))
        guard = Guard(mode="raise")
        guard.arm()
        armed.append(measure(call))
        guard.release()
        assert not sum(guard.attempts.values()), guard.attempts
    pairs = list(zip(off, armed, strict=True))
    return {
        "off": spread(off),
        "armed": spread(armed),
        "ratio": spread([b / a for a, b in pairs]),
        "difference": spread([b - a for a, b in pairs]),
    }


def device_us(call: Callable[[], Any]) -> float:
    """Return the microseconds of one call on the device, host included where it is slower; one call warms up."""
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def time_decode(layer: MoELayer, sizes: Sizes, tokens: int) -> dict[str, Any]:
    """Time a decode loop of 40 layers that share their weights: launched one by one, and as a captured graph."""
    seed = generator(tokens)
    x = 0.1 * torch.randn(tokens, sizes.hidden, generator=seed, device=DEVICE).bfloat16()
    ids = random_routes(tokens, sizes.experts, sizes.top_k, seed)
    factors = torch.randn(ids.shape, generator=seed, device=DEVICE).softmax(-1)
    out = torch.empty_like(x)

    def decode() -> None:
        for _ in range(LAYERS):
            layer.run(x, ids, factors, out)

    decode()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode()
    return {
        "eager_us": time_pairs(decode, device_us),
        "graph_us": time_pairs(graph.replay, device_us),
        "host_us": time_pairs(decode, lambda call: host_us(call, 5)),
    }


def measure(store: Path) -> dict[str, Any]:
    """Measure launches and the decode loop of ds41 on four ranks, in a frozen session."""
    plan, (name, tp) = pack.model_plans()[0], pack.MODELS[0]
    model = load_model(name)
    sizes = Sizes(experts=model.experts, hidden=model.hidden, intermediate=model.intermediate // tp, top_k=model.top_k)
    with planfreeze.session(plan.name, store=store, is_trusted=True) as session:
        session.freeze(guard="off")
        rows = torch.zeros(sizes.top_k, sizes.hidden, dtype=torch.bfloat16, device=DEVICE)
        out = torch.zeros(1, sizes.hidden, dtype=torch.bfloat16, device=DEVICE)
        bound = session.program(TopkSumPayload(hidden=sizes.hidden, top_k=sizes.top_k)).bind(rows, out, 1)
        layer = bind_arm(session, model, tp, "inline", prepare_arm(make_weights(sizes), "inline"))
        return {
            "launch_us": time_pairs(bound.launch, host_us, LAUNCH_ROUNDS),
            "decode": {str(tokens): time_decode(layer, sizes, tokens) for tokens in TOKENS},
        }


def main() -> None:
    """Measure, try the roads, write and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(folder) / "extensions")
        prepared = {name: prepare() for name, prepare in PREPARE.items()}
        figures = measure(given.store)
        roads = try_roads(given.store, pack.model_plans()[0].name, prepared, Path(folder))
    (given.out / "guard.json").write_text(json.dumps({"figures": figures, "roads": roads}, indent=1) + "\n")
    sys.stdout.write(json.dumps(figures["launch_us"]) + "\n")
    for tokens, timed in figures["decode"].items():
        ratios = ", ".join(f"{name} {found['ratio']['median']:.3f}" for name, found in timed.items())
        sys.stdout.write(f"decode {tokens:>3} tokens, armed over off: {ratios}\n")
    for road in roads:
        sys.stdout.write(f"{road['state']:8.200} {road['name']}: {road['error'][:300]}\n")
    sys.exit(any(road["state"] != "refused" for road in roads))


if __name__ == "__main__":
    main()
