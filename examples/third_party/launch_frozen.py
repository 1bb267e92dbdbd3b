"""Launch every variant of the kernels beside this script from a frozen plan, and compare with torch.

On a machine with compilers, in this folder:

    planfreeze build --family sample_kernels.families:sample_softmax,... --arch sm_90a --store STORE

or, with the package installed, by the names of its entry points; ``launch_frozen.py --command`` prints the command.
On the machine with the GPU, which needs torch, cuda-core and planfreeze, and no compiler:

    python examples/third_party/launch_frozen.py --store STORE --arch sm_90a

The exit status is 1 where a result is wrong or anything was compiled, 6 without a GPU.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from sample_kernels import families

import planfreeze
from planfreeze.declared import DeclaredFamily
from planfreeze.device import current_arch
from planfreeze.errors import DeviceMissing, PlanfreezeError, UnplannedProgram
from planfreeze.plans import plan_families
from planfreeze.target import target

FAMILIES = (
    families.sample_softmax,
    families.sample_matmul,
    families.sample_layer_norm,
    families.sample_scale_add,
    families.sample_gemm,
)
NAMES = tuple(f"sample_kernels.families:{family.name}" for family in FAMILIES)
LOOSE, TIGHT = 2e-2, 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One launch: the family, its arguments, where the result lands, and what it has to be."""

    family: DeclaredFamily
    values: tuple[Any, ...]
    out: torch.Tensor
    expected: torch.Tensor
    tolerance: float = TIGHT
    grid: tuple[int, ...] | None = None
    constants: dict[str, Any] = field(default_factory=dict)


def softmax_cases(device: torch.device) -> Iterator[Case]:
    for columns in (1, 5, 16, 1000, 1025, 2048, 3001, 4096):
        width = -(-columns // 16) * 16 + 16  # rows lie apart by a multiple of 16, and not by their length
        x = torch.randn(7, width, device=device)[:, :columns]
        out = torch.full((7, width), torch.nan, device=device)[:, :columns]
        values = (out, x, out.stride(0), x.stride(0), columns)
        yield Case(family=families.sample_softmax, values=values, out=out, expected=torch.softmax(x, dim=1), grid=(7,))


def matmul_cases(device: torch.device) -> Iterator[Case]:
    for rows, n, k in ((1, 16, 64), (16, 144, 32), (77, 256, 528)):
        a = (torch.randn(rows, k, device=device) / 4).half()
        b = (torch.randn(k, n, device=device) / 4).half()
        product = a.float() @ b.float()
        for block, activation in ((64, "identity"), (128, "identity"), (64, "relu"), (128, "relu")):
            out = torch.full((rows, n), torch.nan, device=device).half()
            yield Case(
                family=families.sample_matmul,
                values=(a, b, out, rows, n, k, k, n, n),
                out=out,
                expected=product if activation == "identity" else product.clamp(min=0),
                tolerance=LOOSE,
                constants={
                    "BLOCK_M": block,
                    "ACTIVATION": families.named(f"sample_kernels.reductions:{activation}"),
                },
            )


def layer_norm_cases(device: torch.device) -> Iterator[Case]:
    for columns in (2, 48, 1001, 2048):
        weight, bias = (torch.randn(columns, device=device) for _ in range(2))
        for out_shift, x_shift in ((0, 0), (1, 0), (0, 3), (2, 1)):
            x = torch.randn(x_shift + 5 * columns, device=device)[x_shift:].view(5, columns)
            for added in (None, bias):
                out = torch.full((out_shift + 5 * columns,), torch.nan, device=device)[out_shift:].view(5, columns)
                expected = torch.nn.functional.layer_norm(x, (columns,), weight, added, 1e-3)
                yield Case(
                    family=families.sample_layer_norm,
                    values=(out, x, weight, added, columns, 1e-3),
                    out=out,
                    expected=expected,
                    tolerance=1e-4,
                    grid=(5,),
                )


def scale_add_cases(device: torch.device) -> Iterator[Case]:
    for count in (1, 127, 4096, 100_001):
        for per_thread in (1, 4):
            x, y = (torch.randn(count + 1, device=device)[1:] for _ in range(2))
            out = torch.full((count,), torch.nan, device=device)
            yield Case(
                family=families.sample_scale_add,
                values=(out, x, y, count, -0.75),
                out=out,
                expected=x * -0.75 + y,
                constants={"per_thread": per_thread},
            )


def gemm_cases(device: torch.device) -> Iterator[Case]:
    for m, n, k in ((1, 1, 1), (16, 16, 16), (33, 70, 51)):
        for tile in (16, 32):
            a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
            out = torch.full((m, n), torch.nan, device=device)
            expected = (a.double() @ b.double()).float()
            yield Case(
                family=families.sample_gemm,
                values=(a, b, out, m, n, k),
                out=out,
                expected=expected,
                tolerance=1e-4,
                constants={"tile": tile},
            )


def make_cases(device: torch.device) -> Iterator[Case]:
    """Yield launches that together take every variant of every family."""
    for cases in (softmax_cases, matmul_cases, layer_norm_cases, scale_add_cases, gemm_cases):
        yield from cases(device)


def launch_all(store: Path, arch: str, *, is_trusted: bool | None) -> bool:
    """Launch every case from the frozen plan, print what was found, and tell whether all is right."""
    plan = plan_families(FAMILIES, NAMES, target=target(arch)).name
    worst: dict[str, tuple[int, float]] = {}
    is_right, used = True, set()
    with planfreeze.session(plan, store=store, is_trusted=is_trusted) as session:
        session.freeze()
        for case in make_cases(torch.device("cuda")):
            session.launch(case.family, *case.values, grid=case.grid, **case.constants)
            difference = (case.out.float() - case.expected).abs() / (1 + case.expected.abs())
            error = float(difference.max())
            count, known = worst.get(case.family.name, (0, 0.0))
            worst[case.family.name] = (count + 1, max(known, error))
            is_right &= error <= case.tolerance  # a NaN is not
            used.add(case.family.specialize(*case.values, **case.constants))
        is_right &= refuses_what_is_not_planned(session)
        attempts = sum(session.attempts.values())
    planned = sum(len(family.payloads()) for family in FAMILIES)
    sys.stdout.write(f"{plan}: {len(used)} of {planned} variants launched, {attempts} compiled\n")
    for name, (count, error) in worst.items():
        sys.stdout.write(f"{name:20} {count:3} launches, largest error {error:.2e}\n")
    return is_right and attempts == 0 and len(used) == planned


def refuses_what_is_not_planned(session: planfreeze.Session) -> bool:
    """Tell whether a variant that no plan holds is refused, and by its nearest neighbour."""
    x = torch.zeros(64, 64, device="cuda")
    try:
        session.launch(families.sample_gemm, x, x, x, 64, 64, 64, tile=8)
    except UnplannedProgram as error:
        return "tile: 16 -> 8" in str(error)
    return False


def main() -> int:
    """Run the example and return its exit status."""
    parser = argparse.ArgumentParser(description="Launch frozen kernels of another package, and check them.")
    parser.add_argument("--store", type=Path, help="store with the plan of all families")
    parser.add_argument("--arch", help="architecture; by default the device's")
    parser.add_argument("--trust-store", action="store_true", help="take the plan whoever owns the store")
    parser.add_argument("--command", action="store_true", help="print the command that builds the plan, and stop")
    asked = parser.parse_args()
    try:
        if asked.command:
            made_for = target(asked.arch or "sm_90a")
            sys.stdout.write(plan_families(FAMILIES, NAMES, target=made_for).build_command + "\n")
            return 0
        arch = asked.arch or current_arch()
        if arch is None or not torch.cuda.is_available():
            raise DeviceMissing("torch sees none")
        if asked.store is None:
            parser.error("--store is missing")
        is_right = launch_all(asked.store, arch, is_trusted=asked.trust_store or None)
    except PlanfreezeError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
