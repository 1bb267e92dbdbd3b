"""What examples/serving_loop.py is asked to serve: its arguments, the plans of its arms, and the requests."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planfreeze.kernels.moe.plan import MoEPlan, declare
from planfreeze.kernels.moe.rules import choose_arms, shard
from planfreeze.models import Model, PlanOptions, parse_options
from planfreeze.settings import read_settings
from planfreeze.target import target

ROUTES = "int64"  # what topk gives
DESCRIPTION = "Decode and prefill from a frozen session, and measure both."
BATCHES, PROMPTS = (1, 2, 4, 8, 16, 32, 64), (8192, 32768)
SMALL_MODEL = Path(__file__).parents[1] / "tests" / "gpu" / "models" / "layer_1024_320.toml"
USUAL = {"model": "ds41", "tp": 4, "layers": 40, "seconds": 60.0}
SMALL = {"model": str(SMALL_MODEL), "tp": 1, "layers": 4, "seconds": 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decode step of a batch, or the prefill of a prompt: the sizes of the steps that serve it."""

    phase: str
    sizes: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all steps."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to serve: layers, requests, and how often: up to ``calls`` times within ``seconds`` of all arms."""

    layers: int
    requests: tuple[Request, ...]
    calls: int
    seconds: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens that steps are captured for, the largest first: it takes the most memory."""
        return tuple(sorted({size for request in self.requests for size in request.sizes}, reverse=True))


def plan_arms(model: Model, *, tp: int, arch: str, arms: str) -> tuple[MoEPlan, ...]:
    """Declare how the layers are served, in every arm that is asked for and that the model has."""
    limit = read_settings().csf_inline_max_tokens
    asked = choose_arms(shard(model, tp), parse_options(inline_limit=limit, arms=arms))
    options = (PlanOptions(inline_limit=limit, arms=(arm,), id_types=(ROUTES,)) for arm in asked)
    return tuple(declare(model, tp=tp, target=target(arch), options=choice) for choice in options)


def plan_work(plan: MoEPlan, asked: argparse.Namespace) -> Work:
    """Cut prompts into chunks that a capacity of the plan holds, and check that batches have one."""
    chunk = asked.chunk or plan.capacities[-1].capacity
    for tokens in (chunk, *asked.batches):
        plan.choose(tokens)
    decode = (Request(phase="decode", sizes=(batch,)) for batch in asked.batches)
    prefill = (Request(phase="prefill", sizes=cut(prompt, chunk)) for prompt in asked.prompts)
    return Work(layers=asked.layers, requests=(*decode, *prefill), calls=asked.calls, seconds=asked.seconds)


def cut(prompt: int, chunk: int) -> tuple[int, ...]:
    """Return the sizes of a prompt's chunks: all alike, and what is left over."""
    whole, rest = divmod(prompt, chunk)
    return (chunk,) * whole + (rest,) * (rest > 0)


def read_count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers that commas divide, each of them once."""
    return tuple(dict.fromkeys(read_count(part.strip()) for part in text.split(",")))


def read_seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time")
    return seconds


def read_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ``--small`` changes what is not given."""
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument("--model", help="catalog name or file (ds41)")
    parser.add_argument("--tp", type=read_count, help="ranks the model is divided over; this is one of them (4)")
    parser.add_argument("--store", type=Path, help="store or pack with the model's plan, built with --arms all")
    parser.add_argument("--plan", help="name of the plan, best pinned as NAME@sha256:ROOT (that of the model here)")
    parser.add_argument("--trust-store", action="store_true", help="take the plan whoever owns the store")
    parser.add_argument("--arms", default="all", help="inline, expand, native, with commas between them (all)")
    parser.add_argument("--layers", type=read_count, help="layers of the model (40)")
    parser.add_argument("--batches", type=read_counts, default=BATCHES, help="batch sizes to decode (1,2,4,...,64)")
    parser.add_argument("--prompts", type=read_counts, default=PROMPTS, help="prompts to prefill (8192,32768)")
    parser.add_argument("--chunk", type=read_count, help="tokens of a prompt at a time (the largest capacity)")
    parser.add_argument("--calls", type=read_count, default=200, help="how often a request is served at most (200)")
    parser.add_argument("--seconds", type=read_seconds, help="to serve in all, preparation not counted (60)")
    parser.add_argument("--json", type=Path, help="file for everything that was found")
    parser.add_argument("--small", action="store_true", help="serve four layers of a small model, built with its file")
    asked = parser.parse_args(arguments)
    if asked.json and not asked.json.parent.is_dir():
        parser.error(f"--json {asked.json}: there is no folder {asked.json.parent}")
    for name, value in (SMALL if asked.small else USUAL).items():
        if getattr(asked, name) is None:
            setattr(asked, name, value)
    return asked
