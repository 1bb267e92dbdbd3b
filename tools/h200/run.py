"""Launch the pack on a device with every compiler hidden, compare, time, and write the evidence.

python tools/h200/run.py STORE OUT [--stranded FILE]. STORE comes from tools/h200/pack.py, OUT gets h200.json. FILE is
what tests/scales/stranded_pages.py printed. The exit status is 1 when a check failed.
"""

from blindfold import Blindfold

BLINDFOLD = Blindfold()  # before anything could import a compiler

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import checks
import expansion_checks
import grouped_checks as grouped
import layers
import pack
import timings
import torch
from device_facts import describe_machine
from layer import Sizes, exceptional_scales, make_w2, make_w13, serving_scales
from probe_checks import check_planes, check_words

import planfreeze
from planfreeze import errors
from planfreeze.guard import no_compilation
from planfreeze.kernels.moe.act_quant import ActQuantPayload
from planfreeze.kernels.moe.micro_act import MicroActPayload
from planfreeze.kernels.moe.micro_fc1 import MicroFc1Payload
from planfreeze.kernels.moe.micro_fc2 import MicroFc2Payload
from planfreeze.kernels.moe.route_plan import RoutePlanPayload
from planfreeze.kernels.moe.split_fc1 import SplitFc1Payload
from planfreeze.kernels.moe.split_fc2 import SplitFc2Payload
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.kernels.scales.csf_decode import CsfDecodePayload
from planfreeze.kernels.scales.csf_presence import CsfPresencePayload
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.models import Model, load_model
from planfreeze.payload import Payload
from planfreeze.plans import Plan
from planfreeze.resolve import planned_programs, program_name
from planfreeze.sessions import Session


class Run:
    """The session under check, and what was found so far."""

    def __init__(self, store: Path) -> None:
        self.plans = [plan.name for plan in (*pack.model_plans(), pack.check_plan())]
        self.layers: dict[str, Any] = {}
        self.session = planfreeze.session(*self.plans, store=store, is_trusted=True).freeze()
        self.blobs = {
            planned.payload.digest: planned.entry.blob
            for plan in self.session.plans
            for planned in planned_programs(plan)
        }
        self.programs: dict[str, dict[str, Any]] = {}
        self.rows: list[tuple[str, str, float]] = []

    def check(self, name: str, payloads: Sequence[Payload], call: Callable[[], dict[str, Any]]) -> None:
        """Run one check; programs it passed for enter the evidence."""
        started = time.perf_counter()
        try:
            figures = call()
        except Exception as error:  # noqa: BLE001 - one failed check must not hide the others
            traceback.print_exc()
            self.rows.append((name, f"FAILED: {type(error).__name__}: {error}"[:160], time.perf_counter() - started))
            torch.cuda.synchronize()
            return
        self.rows.append((name, "passed", time.perf_counter() - started))
        for payload in payloads:
            self.programs[payload.digest] = {
                "family": payload.family_name,
                "payload": payload.to_fields(),
                "payload_digest": payload.digest,
                "blob": self.blobs[payload.digest],
                **figures,
            }

    @property
    def has_failed(self) -> bool:
        """Whether any check failed."""
        return any(state != "passed" for _, state, _ in self.rows)


def run_checks(run: Run, store: Path) -> None:
    """Run every check."""
    session = run.session
    for plan in pack.model_plans():
        for payload in plan.payloads:
            if isinstance(payload, ActQuantPayload):
                run.check(program_name(payload), [payload], lambda p=payload: checks.check_act_quant(session, p))
            elif isinstance(payload, TopkSumPayload):
                run.check(program_name(payload), [payload], lambda p=payload: checks.check_topk_sum(session, p))
            elif isinstance(payload, ExpandPayload):
                run.check(program_name(payload), [payload], lambda p=payload: expansion_checks.check_expand(session, p))
        run_micro_checks(run, plan)
        torch.cuda.empty_cache()
        run_grouped_checks(run, plan)
        torch.cuda.empty_cache()
    run_decode_checks(run)
    for geometry in pack.INLINE_GEOMETRIES:
        payload = pack.expand_payload(geometry)
        run.check(program_name(payload), [payload], lambda p=payload: expansion_checks.check_expand(session, p))
    run.check(program_name(pack.WIDE), [pack.WIDE], lambda: expansion_checks.check_wide_expand(session, pack.WIDE))
    torch.cuda.empty_cache()
    for geometry in pack.PROBED:
        for thread in pack.COPY_THREADS:
            words = pack.words_payload(geometry, thread)
            run.check(program_name(words), [words], lambda p=words: check_words(session, p))
        planes = [pack.planes_payload(geometry, is_inline=inline) for inline in (False, True)]
        run.check(program_name(planes[1]), planes, lambda p=planes: check_planes(session, *p))
    run_layer_checks(run, store)
    run.check("X2: a removed program is refused", [], lambda: check_removed(store))


def run_micro_checks(run: Run, plan: Plan) -> None:
    """Check the kernels of a model's direct-route layer."""
    session, sizes = run.session, layer_sizes(plan)

    def of(kind: type[Payload]) -> list[Any]:
        return [payload for payload in plan.payloads if isinstance(payload, kind)]

    run.check(f"micro_fc1 of {plan.name}", of(MicroFc1Payload), lambda: checks.check_micro_layer(session, sizes))
    for payload in of(MicroActPayload):
        run.check(program_name(payload), [payload], lambda p=payload: checks.check_micro_act(session, sizes, p))
    layer = make_w2(sizes, checks.generator(8), exceptional_scales)
    for bits in checks.ID_TYPES:
        programs = [payload for payload in of(MicroFc2Payload) if payload.id_bits == bits]
        name = f"micro_fc2 of {plan.name}, {bits}-bit ids"
        run.check(name, programs, lambda b=bits: checks.check_micro_fc2(session, layer, b))


def run_grouped_checks(run: Run, plan: Plan) -> None:
    """Check the kernels of a model's grouped layer, for every number of rows of a tile."""
    session, sizes = run.session, layer_sizes(plan)
    for payload in plan.payloads:
        if isinstance(payload, RoutePlanPayload):
            run.check(program_name(payload), [payload], lambda p=payload: grouped.check_route_plan(session, sizes, p))
    for kind, make, check in (
        (SplitFc1Payload, make_w13, grouped.check_split_fc1),
        (SplitFc2Payload, make_w2, grouped.check_split_fc2),
    ):
        layer = make(sizes, checks.generator(9), exceptional_scales)
        found = [payload for payload in plan.payloads if isinstance(payload, kind)]
        for tile_m in dict.fromkeys(payload.tile_m for payload in found):
            programs = [payload for payload in found if payload.tile_m == tile_m]
            name = f"{kind.family_name} of {plan.name}, tiles of {tile_m}"
            run.check(name, programs, lambda t=tile_m, c=check, w=layer: c(session, w, t))
        del layer
        torch.cuda.empty_cache()


def run_layer_checks(run: Run, store: Path) -> None:
    """Check the whole layers of ds41 and of the small geometries, in sessions of their own."""
    for plan, model in pack.served_layers():
        with planfreeze.session(plan.name, store=store, is_trusted=True) as session:
            session.freeze()

            def call(plan: Plan = plan, model: Model = model, session: Session = session) -> dict[str, Any]:
                run.layers[plan.name] = layers.check_layer(session, model, layer_sizes(plan, model), tp=plan.tp)
                return {}

            run.check(f"layer of {plan.name}, all arms", [], call)
        torch.cuda.empty_cache()


def run_decode_checks(run: Run) -> None:
    """Check the decoding of scale batches of every model."""
    session = run.session
    for plan in pack.model_plans():
        sizes = layer_sizes(plan)
        for payload in plan.payloads:
            if isinstance(payload, CsfDecodePayload):
                call = lambda p=payload, z=sizes: grouped.check_csf_decode(session, z.experts, p)  # noqa: E731
                run.check(program_name(payload), [payload], call)
            elif isinstance(payload, CsfPresencePayload):
                call = lambda p=payload, z=sizes: grouped.check_csf_presence(session, p, z)  # noqa: E731
                run.check(program_name(payload), [payload], call)


def layer_sizes(plan: Plan, model: Model | None = None) -> Sizes:
    """Return the geometry of a model's layer on one rank; of a catalog model by its name."""
    model = model or load_model(plan.model)
    return Sizes(
        experts=model.experts,
        hidden=model.hidden,
        intermediate=model.intermediate // plan.tp,
        top_k=model.top_k,
    )


def check_removed(store: Path) -> dict[str, Any]:
    """Launch an expansion with lowering forbidden; with its record removed, or unplanned, it is refused by name."""
    payload = pack.expand_payload(pack.INLINE_GEOMETRIES[1])
    plan = pack.check_plan().name
    with tempfile.TemporaryDirectory() as folder, no_compilation() as guard:
        copy = Path(folder) / "store"
        shutil.copytree(store, copy)
        with planfreeze.session(plan, store=copy, is_trusted=True) as session:
            expansion_checks.check_expand(session, payload)
            unplanned = ExpandPayload(experts=5, rows=5120, columns=18, group_rows=5120)
            expect(errors.UnplannedProgram, lambda: session.program(unplanned), "experts")
            planned = next(p for p in planned_programs(session.plans[0]) if p.payload == payload)
        (copy / "records" / planned.entry.key[:2] / planned.entry.key).unlink()
        with planfreeze.session(plan, store=copy, is_trusted=True) as session:
            expect(errors.MissingPrograms, session.freeze, program_name(payload))
    checks.require(not sum(guard.attempts.values()), "something tried to compile")
    return {}


def expect(error: type[Exception], call: Callable[[], Any], named: str) -> None:
    """Require that a call raises an error whose text names something."""
    try:
        call()
    except error as raised:
        checks.require(named in str(raised), f"{error.__name__} does not name {named}: {raised}")
    else:
        raise checks.Disagreement(f"{error.__name__} was not raised")


def run_timings(session: Session, figures: dict[str, Any]) -> None:
    """Add the timings of ds41 on four ranks to ``figures`` as they come."""
    plan = pack.model_plans()[0]
    sizes = layer_sizes(plan)
    expands = tuple(payload for payload in plan.payloads if isinstance(payload, ExpandPayload))
    figures["launch_host_us"] = timings.time_launch(session, sizes.hidden, sizes.top_k)
    figures["small_us"] = timings.time_small(session, sizes.hidden, sizes.top_k)
    figures["expand_layer_us"] = timings.time_expand(session, expands)
    figures["encode_layer_ms"] = timings.time_encode(tuple(p.geometry for p in expands), expands[0].experts)
    w13 = make_w13(sizes, checks.generator(7), serving_scales)
    w2 = make_w2(sizes, checks.generator(8), serving_scales)
    figures["micro_fc1_us"] = timings.time_projection(session, w13, timings.bind_fc1)
    figures["micro_fc2_us"] = timings.time_projection(session, w2, timings.bind_fc2)
    figures["grouped_us"] = timings.time_grouped(session, w13, w2)


def main() -> None:
    """Run everything and write the evidence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stranded", type=Path)
    given = parser.parse_args()
    # Read first: what is missing is told before a minute has been measured.
    built_with = json.loads(pack.toolchain_file(given.store).read_text())
    run = Run(given.store)
    figures: dict[str, Any] = {}
    run_checks(run, given.store)
    run.check("timings", [], lambda: run_timings(run.session, figures) or {})
    attempts = sum(run.session.attempts.values())
    hidden = BLINDFOLD.report()
    reached = (hidden["modules_loaded"], hidden["commands_found"], hidden["compilers_started"], attempts)
    run.check("no compiler", [], lambda: checks.require(not any(reached), str(hidden)) or {})
    evidence = {
        **describe_machine(run.session),
        "built_with": built_with,
        "no_compiler": {**hidden, "attempts": attempts},
        "stranded_pages": json.loads(given.stranded.read_text()) if given.stranded else None,
        "checks": [{"name": name, "state": state} for name, state, _ in run.rows],
        "timings": figures,
        "layers": run.layers,
        "programs": sorted(run.programs.values(), key=lambda p: (p["family"], p["payload_digest"])),
    }
    (given.out / "h200.json").write_text(json.dumps(evidence, indent=1) + "\n")
    layers.print_layers(run.layers)
    print_table(run.rows, figures)
    sys.exit(run.has_failed)


def print_table(rows: list[tuple[str, str, float]], figures: dict[str, Any]) -> None:
    """Print a short table: checks, then medians."""
    for name, state, seconds in rows:
        sys.stdout.write(f"{state:<8.160} {seconds:6.2f} s  {name}\n")
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
