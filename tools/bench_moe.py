"""Measure a MoE layer side by side: the arms, the floors, and what else people serve with.

python tools/bench_moe.py --store STORE [--checkpoint DIR] [--peers DIR] [--json FILE] [--plot FILE]

STORE comes from tools/h200/pack.py or from ``planfreeze build`` with all arms. The checkpoint is one that
tools/generate_checkpoint.py wrote; moe_bench/peers.py says what DIR of ``--peers`` holds. ``--read FILE`` prints and
draws the figures of an earlier run and needs no device. The exit status is 1 when arms differ in a
bit or are wrong.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from moe_bench.plot import draw
from moe_bench.tables import write_report
from moe_bench.targets import TOKENS

from planfreeze import errors
from planfreeze.models import load_model

Figures = dict[str, Any]
INLINE_LIMIT = 1536
TOLERANCE = 4e-3
"""Relative L2 error of the arms against float64."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure a MoE layer side by side.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", type=Path, help="store with the model's plan for sm_90a, all arms")
    source.add_argument("--read", type=Path, metavar="FILE", help="print the figures of an earlier run")
    parser.add_argument("--model", default="ds41", help="catalog name or file; default: ds41")
    parser.add_argument("--tp", type=int, default=4, help="ranks the model is divided over; default: 4")
    parser.add_argument("--tokens", type=count_list, default=TOKENS, help="counts, comma separated")
    parser.add_argument("--inline-limit", type=int, default=INLINE_LIMIT, help="as the plan was built; default: 1536")
    parser.add_argument("--minutes", type=float, default=5.0, help="begin nothing after so long; default: 5")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="measure its first layer too")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="outside layers; see moe_bench/peers.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them; SVG or PNG, needs matplotlib")
    return parser.parse_args(arguments)


def count_list(text: str) -> tuple[int, ...]:
    """Read token counts."""
    counts = tuple(sorted({int(part) for part in text.split(",")}))
    if counts[0] < 1:
        raise argparse.ArgumentTypeError(f"{text}: counts are 1 or more")
    return counts


def measure(given: argparse.Namespace) -> Figures:
    """Run the measurement; what was measured before an error is written too."""
    from moe_bench.inputs import match_checkpoint
    from moe_bench.suite import Options, Suite

    import planfreeze

    options = Options(
        model=load_model(given.model),
        tp=given.tp,
        tokens=given.tokens,
        inline_limit=given.inline_limit,
        minutes=given.minutes,
        checkpoint=given.checkpoint,
        peers=given.peers,
    )
    if options.checkpoint is not None:
        try:
            match_checkpoint(options.checkpoint, options.sizes)
        except ValueError as error:
            raise SystemExit(f"error: {error}") from error
    name = f"{options.model.name}-tp{options.tp}-sm_90a"
    with planfreeze.session(name, store=given.store, is_trusted=True) as session:
        # Not armed: the baselines compile at first use. What the arms launch was built before.
        suite = Suite(session.freeze(guard="off"), options)
        try:
            return suite.run()
        finally:
            if given.json is not None:
                given.json.write_text(json.dumps(suite.figures, indent=1) + "\n")


def has_agreed(figures: Figures) -> bool:
    """Tell whether all arms had the same bits everywhere, and the right ones where that was looked at."""
    return all(
        found["same_bits"] and found["is_finite"] and found["relative_l2"].get("native", 0.0) <= TOLERANCE
        for layer in figures["layers"].values()
        for found in layer.values()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read, print and draw; return the exit status."""
    given = parse_arguments(arguments)
    try:
        figures = json.loads(given.read.read_text()) if given.read is not None else measure(given)
    except errors.PlanfreezeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(write_report(figures))
    if given.plot is not None:
        try:
            draw(figures, given.plot)
        except ImportError as error:
            sys.stderr.write(f"no drawing: {error}\n")
    return 0 if has_agreed(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
