"""The host's side of a whole layer's call: a small one, so that the device keeps up."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "h200"))

import torch
from checks import DEVICE, generator
from layer import ARCH, Sizes, random_routes
from layers import bind_arm, make_weights, prepare_arm
from rounds import Row, make_row, run_rounds, time_calls

import planfreeze
from planfreeze.cache.readable import ReadableStore
from planfreeze.models import load_model
from planfreeze.programs import Bound

__all__ = ["measure_layer"]

MODEL = Path(__file__).resolve().parents[2] / "tests" / "gpu" / "models" / "layer_1024_320.toml"
CALLS = 100
TOKENS = (8, 64)
"""A call of the direct kernels, and one of the grouped ones."""


def launch_all(bound: Sequence[Bound]) -> None:
    """Launch the programs of a call."""
    for ready in bound:
        ready.launch()


def measure_layer(readable: ReadableStore, rounds: int) -> list[Row]:
    """Time ``MoELayer.run`` outside of a CUDA graph against launching the same programs, bound before."""
    model = load_model(str(MODEL))
    sizes = Sizes(experts=model.experts, hidden=model.hidden, intermediate=model.intermediate, top_k=model.top_k)
    rows = []
    with planfreeze.session(f"{model.name}-tp1-{ARCH}", store=readable.path, is_trusted=True) as session:
        layer = bind_arm(session.freeze(), model, 1, "inline", prepare_arm(make_weights(sizes), "inline"))
        for tokens in TOKENS:
            x = torch.randn(tokens, sizes.hidden, device=DEVICE).bfloat16()
            ids = random_routes(tokens, sizes.experts, sizes.top_k, generator(tokens))
            call = (x, ids, torch.rand(ids.shape, device=DEVICE), torch.empty_like(x))
            bound = layer.bind_call(*call)
            finish = torch.cuda.synchronize
            cases = {
                "run": partial(time_calls, partial(layer.run, *call), CALLS, finish=finish),
                "bound": partial(time_calls, partial(launch_all, bound), CALLS, finish=finish),
            }
            what = f"`MoELayer.run`, {tokens} tokens, no graph"
            against = f"its {len(bound)} launches, bound before"
            taken = run_rounds(cases, rounds)
            rows.append(make_row(taken, "run", "bound", what=what, against=against, unit="us", budget=None))
    return rows
