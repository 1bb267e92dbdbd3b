"""The whole measurement: every candidate at every token count, as one JSON value."""

import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from h200.layer import ARCH, Sizes
from moe_bench.arms import ProductArm, bind_arms
from moe_bench.ceiling import read_ceiling
from moe_bench.floors import expert_bytes, floor_us, routed_experts
from moe_bench.inputs import (
    DEVICE,
    Candidate,
    Inputs,
    checkpoint_weights,
    make_inputs,
    synthetic_weights,
)
from moe_bench.meter import Meter
from moe_bench.peers import Marlin, TritonKernels
from moe_bench.scaled_layer import ScaledLayer
from moe_bench.timing import capture, time_cool, time_sustained
from msgspec import Struct
from msgspec.structs import asdict

from planfreeze.kernels.moe import reference, reference_grouped
from planfreeze.kernels.moe.checkpoints import LayerWeights
from planfreeze.kernels.moe.rules import Backend
from planfreeze.models import Model
from planfreeze.sessions import Session

ERROR_TOKENS = (1, 8, 64, 512)
"""Counts that are compared with float64 too, which takes seconds above."""
FEW_TOKENS, ROUTINGS, MORE_ROUTINGS = 8, 5, 20
"""Up to so many tokens, five routings read so little that the L2 keeps some of it: then every call has its own."""
BASELINE_TOLERANCE = 1e-2
"""Relative L2 error of a baseline that computes the same layer; it rounds in other places than the reference."""
SUSTAINED_S = 1.4
UNLIMITED = "inline_always"

Figures = dict[str, Any]


class Options(Struct, frozen=True, kw_only=True):
    """What is measured."""

    model: Model
    tp: int
    tokens: tuple[int, ...]
    inline_limit: int
    minutes: float
    checkpoint: Path | None
    peers: Path | None

    @property
    def sizes(self) -> Sizes:
        """Geometry of one rank's layer."""
        return Sizes(
            experts=self.model.experts,
            hidden=self.model.hidden,
            intermediate=self.model.intermediate // self.tp,
            top_k=self.model.top_k,
        )


class Suite:
    """A measurement that runs until its time is used up; what is left out then is listed."""

    def __init__(self, session: Session, options: Options) -> None:
        self.session = session
        self.options = options
        self.began = time.monotonic()
        properties = torch.cuda.get_device_properties(DEVICE)
        self.meter = Meter(f"GPU-{properties.uuid}")
        self.figures: Figures = {
            **describe(properties.name),
            "model": options.model.name,
            "tp": options.tp,
            "geometry": asdict(options.sizes),
            "inline_limit": options.inline_limit,
            "arms": {},
            "layers": {},
            "failed": {},
            "left_out": [],
        }

    def run(self) -> Figures:
        """Measure everything; the figures so far are in ``figures`` at any time."""
        with self.meter:
            self.say("read ceiling")
            self.figures["read_ceiling_tb_s"] = read_ceiling()
            torch.cuda.empty_cache()
            sustained = self.measure("synthetic", synthetic_weights(self.options.sizes, 7), has_baselines=True)
            if self.options.checkpoint is not None:
                self.say(f"reading {self.options.checkpoint}")
                weights = checkpoint_weights(self.options.checkpoint, self.options.sizes)
                self.measure("checkpoint", weights, has_baselines=False)
            for measure in sustained:
                measure()
        self.figures["meter"] = self.meter.reason or "NVML, every 10 ms"
        self.figures["seconds"] = time.monotonic() - self.began
        return self.figures

    def measure(self, scales: str, weights: LayerWeights, *, has_baselines: bool) -> list[Callable[[], None]]:
        """Measure one layer at every count with rests; return what measures it without."""
        self.say(f"preparing the layer with {scales} scales")
        arms = tuple(
            bind_arms(
                self.session,
                self.options.model,
                tp=self.options.tp,
                weights=weights,
                inline_limit=self.options.inline_limit,
            )
        )
        if UNLIMITED not in (arm.name for arm in arms):
            self.figures["left_out"].append(f"{UNLIMITED}: the store has no inline programs above the limit")
        candidates: list[Candidate] = [*arms]
        if has_baselines:
            candidates += self.baselines(weights)
        self.figures["arms"] |= {candidate.name: candidate.note for candidate in candidates}
        bytes_by_expert = {arm.name: expert_bytes(arm.experts) for arm in arms}
        self.figures["layers"][scales] = {}
        later = []
        for tokens in self.options.tokens:
            if self.is_late(f"{scales} scales, {tokens} tokens"):
                continue
            routings = make_inputs(
                self.options.sizes, tokens, MORE_ROUTINGS if tokens <= FEW_TOKENS else ROUTINGS, 100 + tokens
            )
            found = self.check(arms, candidates, weights, tokens)
            read = [len(routed_experts(inputs.ids, self.options.sizes.experts)) for inputs in routings]
            found["experts_read"] = sum(read) / len(read)
            found["arms"] = {name: {"cool": cool} for name, cool in self.time(candidates, tokens, routings).items()}
            ids = [inputs.ids for inputs in routings]
            for name, timed in found["arms"].items():
                timed["floor_us"] = floor_us(bytes_by_expert.get(name, bytes_by_expert["native"]), ids)
            self.figures["layers"][scales][str(tokens)] = found
            later.append(lambda f=found, t=tokens, r=routings: self.sustain(candidates, t, r, f))
        return later

    def baselines(self, weights: LayerWeights) -> list[Candidate]:
        """Return the outside layers that can be had; the others are listed with the reason."""
        makers: dict[str, Callable[[], Candidate]] = {
            "dot_scaled": lambda: ScaledLayer(self.session, weights, ARCH),
        }
        folder, sizes = self.options.peers, self.options.sizes
        if folder is not None:
            makers |= {"marlin": lambda: Marlin(folder, sizes), "triton_kernels": lambda: TritonKernels(folder, sizes)}
        else:
            self.figures["left_out"] += ["marlin and triton_kernels: no --peers"]
        return [made for name, make in makers.items() if (made := self.attempt(name, make)) is not None]

    def check(
        self, arms: tuple[ProductArm, ...], candidates: Iterable[Candidate], weights: LayerWeights, tokens: int
    ) -> Figures:
        """Compare the arms bit for bit, over fresh inputs and poisoned outputs; at a few counts with float64 too."""
        inputs = make_inputs(self.options.sizes, tokens, 1, 9000 + tokens)[0]
        outs = {arm.name: arm.run_poisoned(inputs) for arm in arms}
        first = outs["native"].view(torch.int16)
        found: Figures = {
            "same_bits": all(torch.equal(out.view(torch.int16), first) for out in outs.values()),
            "is_finite": bool(outs["native"].isfinite().all()),
            "relative_l2": {},
        }
        if tokens not in ERROR_TOKENS:
            return found
        is_micro = arms[0].layer.plan.choose(tokens).backend is Backend.MICRO
        operands = (
            inputs.x,
            weights.w13,
            weights.w13_scales,
            weights.w2,
            weights.w2_scales,
            inputs.ids,
            inputs.factors,
        )
        # The baseline rounds as grouped routes do at every count.
        grouped = reference_grouped.grouped_layer(*operands)
        expected = reference.micro_layer(*operands) if is_micro else grouped
        found["relative_l2"]["native"] = relative_l2(outs["native"], expected)
        for candidate in candidates:
            if isinstance(candidate, ScaledLayer):
                out = self.attempt(candidate.name, lambda c=candidate: c.bind(inputs)())
                if out is not None:
                    found["relative_l2"][candidate.name] = relative_l2(out, grouped)
                    if not found["relative_l2"][candidate.name] <= BASELINE_TOLERANCE:
                        self.figures["failed"][candidate.name] = f"wrong result at {tokens} tokens"
        return found

    def time(self, candidates: Iterable[Candidate], tokens: int, routings: list[Inputs]) -> Figures:
        """Time every candidate that works, interleaved."""
        graphs = self.graphs(candidates, tokens, routings)
        timed = time_cool(graphs, self.meter)
        self.say(f"{tokens} tokens: " + ", ".join(f"{name} {found['median']:.1f}" for name, found in timed.items()))
        return timed

    def sustain(self, candidates: list[Candidate], tokens: int, routings: list[Inputs], found: Figures) -> None:
        """Add what every candidate takes in turns without rests."""
        if self.is_late(f"sustained, {tokens} tokens"):
            return
        graphs = {n: g for n, g in self.graphs(candidates, tokens, routings).items() if n in found["arms"]}
        for name, sustained in time_sustained(graphs, self.meter, SUSTAINED_S).items():
            found["arms"][name]["sustained"] = sustained
        self.say(f"{tokens} tokens sustained")

    def graphs(self, candidates: Iterable[Candidate], tokens: int, routings: list[Inputs]) -> Figures:
        torch.cuda.empty_cache()
        found = {}
        for candidate in candidates:
            if candidate.name == UNLIMITED and tokens <= self.options.inline_limit:
                continue
            graph = self.attempt(candidate.name, lambda c=candidate: capture([c.bind(inputs) for inputs in routings]))
            if graph is not None:
                found[candidate.name] = graph
        return found

    def attempt(self, name: str, call: Callable[[], Any]) -> Any:
        """Return what a call returns; a baseline that fails is listed with its error, an arm of ours fails the run."""
        try:
            return call()
        except Exception as error:
            if name not in ("dot_scaled", "marlin", "triton_kernels"):
                raise
            self.figures["failed"][name] = f"{type(error).__name__}: {error}"[:400]
            self.say(f"{name} failed: {self.figures['failed'][name]}")
            return None

    def is_late(self, what: str) -> bool:
        """Tell whether the time is used up, and list what is left out then."""
        if time.monotonic() - self.began < 60 * self.options.minutes:
            return False
        self.figures["left_out"].append(f"{what}: {self.options.minutes:g} minutes were used up")
        return True

    def say(self, text: str) -> None:
        """Print progress."""
        sys.stderr.write(f"{time.monotonic() - self.began:6.1f} s  {text}\n")
        sys.stderr.flush()


def describe(device: str) -> Figures:
    """Return device, driver and versions."""
    names = ("torch", "triton", "cuda-core", "cuda-bindings")
    driver = Path("/proc/driver/nvidia/version")
    return {
        "device": device,
        "kernel_driver": driver.read_text().splitlines()[0] if driver.exists() else "unknown",
        "versions": {
            "python": sys.version.split()[0],
            **{name: importlib.metadata.version(name) for name in names},
        },
    }


def relative_l2(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative L2 error."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())
