"""Write docs/performance.md from the evidence: python tools/h200/performance.py.

``evidence/h200.json`` is what tools/h200/run.py wrote, ``budgets.json`` what tools/budgets.py did, and ``launch.json``,
where there is one, what tools/bench_launch.py did.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "performance.md"
EVIDENCE = ROOT / "evidence"
READ_BYTES_PER_US = 4.3e6
"""Random bytes were read at 4.1 to 4.3 TB/s on such cards."""
HIDDEN, GROUPS, ROUTES = 5120, 160, 6
ARMS = ("native", "expand", "inline")

Figures = dict[str, Any]


def read(name: str) -> Figures | None:
    """Return what one run wrote, or None where there is no such run."""
    path = EVIDENCE / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write(evidence: Figures, budgets: Figures, launches: Figures | None) -> str:
    """Return the document."""
    timings, versions, built = evidence["timings"], evidence["versions"], evidence["built_with"]
    driver = evidence["kernel_driver"].split("x86_64")[1].split()[0]
    stranded = evidence["stranded_pages"]
    return f"""# Measured

One {evidence["device"]} (driver {driver}, CUDA {evidence["cuda_driver"]}), Python {versions["python"]}, torch
{versions["torch"]}, cuda-core {versions["cuda-core"]}; programs built with Triton {built["triton"]} and
nvidia-cutlass-dsl {built["nvidia-cutlass-dsl"]} on a machine without a GPU. `tools/h200/run.py` measured it,
`tools/h200/performance.py` wrote this page from `evidence/h200.json`. The floor is the bytes a call must move at
4.3 TB/s, what random bytes were read at on such cards.

## Kernels

Geometry of `ds41` on four ranks (384 experts, hidden 5120, 576 columns a rank, top 6). CUDA graphs of 20 calls, 54
interleaved rounds, forms of scales side by side; for the projections three or five routings in turn, exceptions in
0.03 % of the scales and two dense rows an expert. Back to back as here, the card is at its power limit above 64 tokens.
[side_by_side.md](side_by_side.md) has cool figures, outside layers, what limits and what was tried.

| program | tokens | median us | 10..90 % | floor us | x floor |
|---|---|---|---|---|---|
{chr(10).join(kernel_rows(timings))}

## Whole layers

All arms give the same bits. Errors are relative L2 against float64 with the kernels' roundings; times are microseconds
a call in CUDA graphs, medians of 54 interleaved rounds, routing and sums included. `expand` decodes the scales before
every call; above 1536 tokens, the limit that these plans were made with, the inline arm expands its own first. Calls
of a graph have the same routes, so that the L2 keeps some of what few tokens read; [side_by_side.md](side_by_side.md)
has calls with routes of their own.

| layer | tokens | error | native | expand | inline |
|---|---|---|---|---|---|
{chr(10).join(layer_rows(evidence["layers"]))}

## Preparing

Encoding the inline scales of one layer, with verification: {timings["encode_layer_ms"]["median"]:.0f} ms of wall time.
Preparing eight planes of four layers leaves {stranded["stranded_mib"]:.0f} MiB stranded in torch's allocator,
{stranded["stranded_without_pools_mib"]:.0f} MiB without private pools.

## Launching, host side

| call | median us | ratio | budget |
|---|---|---|---|
{chr(10).join(launch_rows(timings["launch_host_us"]))}

## Budgets

Each row is a figure over its base, taken in turn in the same rounds: the median ratio, and its quartiles. The largest
ratio that is allowed is the budget.
{budget_tables(budgets, launches)}"""


def budget_tables(budgets: Figures, launches: Figures | None) -> str:
    """Return a table for each machine."""
    parts = [
        f"""
Without a device: {describe(budgets)}.
`tools/budgets.py` measured it.

{ratio_table(budgets["rows"])}"""
    ]
    if launches is not None:
        parts.append(
            f"""
With a device: one {launches["device"]}, {describe(launches)}; CuTe through TVM-FFI: {launches["tvm_ffi"]}.
`tools/bench_launch.py` measured it; times are the host's.

{ratio_table(launches["rows"])}"""
        )
    return "\n".join(parts)


def describe(machine: Figures) -> str:
    """Return a machine and its versions in words."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['cores']} cores of {machine['processor']}, {machine['system']};\n{versions}"


def ratio_table(rows: list[Figures]) -> str:
    """Return the table of some rows."""
    lines = ["| what | median | against | median | ratio | quartiles | budget |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        figure, base, ratio = row["figure"]["median"], row["base"]["median"], row["ratio"]
        quartiles = f"{ratio['first_quartile']:.2f}..{ratio['third_quartile']:.2f}"
        allowed = "" if row["budget"] is None else f"{row['budget']:.3g}"
        if row["budget"] is not None and ratio["median"] > row["budget"]:
            allowed += ": **missed**"
        lines.append(
            f"| {row['what']} | {round_figure(figure)} {row['unit']} | {row['against']} | {round_figure(base)} "
            f"{row['unit']} | {ratio['median']:.2f} | {quartiles} | {allowed} |"
        )
    return "\n".join(lines) + "\n"


def kernel_rows(timings: Figures) -> Iterator[str]:
    """Yield a row per program and token count."""
    for family in ("micro_fc1", "micro_fc2"):
        for tokens, arms in timings[f"{family}_us"].items():
            for arm in ("native", "inline"):
                yield row(f"`{family}`, {arm} scales", tokens, arms[arm], arms[arm]["floor_bytes"])
    for tokens, timed in timings["grouped_us"].items():
        for family in ("split_fc1", "split_fc2"):
            for arm in ("native", "inline"):
                figures = timed[f"{family} {arm}"]
                name = f"`{family}`, {arm} scales, tiles of {timed['tile_m']}"
                yield row(name, tokens, figures, figures["floor_bytes"])
        yield row(f"`route_plan`, tiles of {timed['tile_m']}", tokens, timed["route_plan"], 0)
    yield row(
        "`expand`, both projections", "any", timings["expand_layer_us"], timings["expand_layer_us"]["floor_bytes"]
    )
    for tokens, small in timings["small_us"].items():
        quantiser_bytes = int(tokens) * (3 * HIDDEN + 4 * GROUPS)
        yield row("`act_quant`", tokens, small["act_quant"], quantiser_bytes)
        yield row("`topk_sum`", tokens, small["topk_sum"], int(tokens) * 2 * HIDDEN * (ROUTES + 1))


def layer_rows(layers: Figures) -> Iterator[str]:
    """Yield a row per layer and token count."""
    for name, by_tokens in layers.items():
        for tokens, found in by_tokens.items():
            times = [f"{found['us'][arm]['median']:.1f}" if arm in found["us"] else "" for arm in ARMS]
            yield f"| {name} | {tokens} | {found['relative_l2']:.1e} | {' | '.join(times)} |"


def row(name: str, tokens: str, timed: Figures, floor_bytes: float) -> str:
    """Return one row."""
    floor_us = floor_bytes / READ_BYTES_PER_US
    spread = f"{timed['p10']:.1f}..{timed['p90']:.1f}"
    ratio = f"{timed['median'] / floor_us:.2f}" if floor_us > 1 else ""
    return f"| {name} | {tokens} | {timed['median']:.1f} | {spread} | {floor_us:.1f} | {ratio} |"


def launch_rows(timed: Figures) -> Iterator[str]:
    """Yield a row per way to launch or look up, with its ratio to the bare one."""
    for name, key, base, budget in (
        ("bare driver call, parameters packed before", "driver", "driver", None),
        ("`bound.launch()`", "bound", "driver", 1.25),
        ("`program.launch(...)`, every argument checked", "checked", "driver", 2.0),
        ("look-up of a string in a dict", "dict", "dict", None),
        ("`session.program(payload)`", "look_up", "dict", 10.0),
    ):
        ratio = timed[key]["median"] / timed[base]["median"]
        verdict = "" if budget is None else f"{budget:g}" + (": **missed**" if ratio > budget else "")
        yield f"| {name} | {timed[key]['median']:.3f} | {ratio:.2f} | {verdict} |"


def round_figure(value: float) -> str:
    """Return a figure with three digits that count, and none behind the point of large ones."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    evidence, budgets = read("h200"), read("budgets")
    if evidence is None or budgets is None:
        raise SystemExit(f"{EVIDENCE} lacks h200.json or budgets.json")
    DOCUMENT.write_text(write(evidence, budgets, read("launch")))
