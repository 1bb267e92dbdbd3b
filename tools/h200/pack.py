"""Build the pack that tools/h200/run.py launches: python tools/h200/pack.py STORE. Needs compilers, no GPU."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launch_bench.sums import launch_plan
from probes.scale_probe import ScalePlanesPayload, ScaleWordsPayload
from probes.shared_probe import SharedProbePayload

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.kernels.scales.expand import ExpandPayload
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.models import Model, PlanOptions, load_model
from planfreeze.payload import Payload
from planfreeze.plans import Plan, make_plan
from planfreeze.settings import user_cache
from planfreeze.target import target

ARCH = "sm_90a"
MODELS = (("ds41", 4), ("kimi_k3", 16))
OPTIONS = PlanOptions(inline_limit=1536, arms=("inline", "expand", "native"))

# Every geometry that reads scales inline: both projections of both models, and the two of the small test layers.
INLINE_GEOMETRIES = tuple(
    ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    for rows, columns, group_rows in (
        (1152, 160, 576),
        (5120, 18, 5120),
        (384, 112, 192),
        (3584, 6, 3584),
        (640, 32, 320),
        (1024, 10, 1024),
        (384, 16, 192),
        (512, 6, 512),
    )
)
SMALL_EXPERTS = 3
# One expert more than 2^31 bytes of native plane hold.
WIDE = ExpandPayload(experts=32769, rows=128, columns=512, group_rows=128)
PROBED = INLINE_GEOMETRIES[:5]
COPY_THREADS = (0, 32)
# Up to 48 KiB a kernel gets without asking; from there on its limit has to be raised.
SHARED_BYTES = (47 * 1024, 48 * 1024, 48 * 1024 + 16, 49 * 1024, 100 * 1024)


def model_plans() -> tuple[Plan, ...]:
    """Return the plans of the catalog's models with all arms."""
    return tuple(make_plan(load_model(name), tp=tp, target=target(ARCH), options=OPTIONS) for name, tp in MODELS)


def served_layers() -> tuple[tuple[Plan, Model], ...]:
    """Return the plans and models whose whole layers are served: ds41, and the small ones of tests/gpu."""
    ds41, tp = MODELS[0]
    paths = sorted((Path(__file__).resolve().parents[2] / "tests" / "gpu" / "models").glob("*.toml"))
    sources = [(ds41, tp), *((str(path), 1) for path in paths)]
    return tuple(
        (make_plan(model, tp=ranks, target=target(ARCH), options=OPTIONS, source=source), model)
        for source, ranks in sources
        for model in (load_model(source),)
    )


def expand_payload(geometry: ScaleGeometry) -> ExpandPayload:
    """Return the expansion of a few experts of a geometry."""
    return ExpandPayload(
        experts=SMALL_EXPERTS, rows=geometry.rows, columns=geometry.columns, group_rows=geometry.group_rows
    )


def words_payload(geometry: ScaleGeometry, copy_thread: int) -> ScaleWordsPayload:
    """Return the probe of the per-thread rebuild."""
    return ScaleWordsPayload(
        rows=geometry.rows, columns=geometry.columns, group_rows=geometry.group_rows, copy_thread=copy_thread
    )


def planes_payload(geometry: ScaleGeometry, *, is_inline: bool) -> ScalePlanesPayload:
    """Return the probe of the per-warp rebuild."""
    return ScalePlanesPayload(
        rows=geometry.rows, columns=geometry.columns, group_rows=geometry.group_rows, is_inline=is_inline
    )


def check_plan() -> Plan:
    """Return the plan of the programs that only the checks launch."""
    payloads: list[Payload] = [expand_payload(geometry) for geometry in INLINE_GEOMETRIES]
    payloads.append(WIDE)
    payloads += [words_payload(geometry, thread) for geometry in PROBED for thread in COPY_THREADS]
    payloads += [planes_payload(geometry, is_inline=inline) for geometry in PROBED for inline in (False, True)]
    payloads += [SharedProbePayload(shared_bytes=size) for size in SHARED_BYTES]
    return Plan(model="checks", tp=1, target=target(ARCH), payloads=tuple(payloads))


def toolchain_file(store: Path) -> Path:
    """Return the file beside a store that names the compilers' versions, which the device's machine does not have."""
    return store.with_name(f"{store.name}.toolchain.json")


def main() -> None:
    """Build all plans; the exit status is 1 when a program does not compile or exceeds a budget."""
    report = build_plans(
        (*model_plans(), check_plan(), launch_plan(ARCH), *(plan for plan, _ in served_layers()[1:])),
        Store.open(sys.argv[1], writable=True),
        jobs=len(os.sched_getaffinity(0)),
        toolchains=user_cache() / "toolchains",
    )
    for outcome in report.outcomes:
        if outcome.reason:
            sys.stderr.write(f"{outcome.program.name}: {outcome.reason}\n")
    for excess in report.excesses:
        sys.stderr.write(f"{excess}\n")
    versions = {name: metadata.version(name) for name in ("triton", "nvidia-cutlass-dsl")}
    toolchain_file(Path(sys.argv[1])).write_text(json.dumps(versions))
    for plan in report.plans:
        sys.stdout.write(f"{plan.name}@sha256:{plan.root} {len(plan.entries)} programs\n")
    sys.exit(report.count("failed") > 0 or bool(report.excesses))


if __name__ == "__main__":
    main()
