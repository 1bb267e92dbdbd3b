"""What is measured: a model's plan, and as many Triton programs as it has."""

from pathlib import Path

from msgspec import Struct

from planfreeze.models import PlanOptions, load_model
from planfreeze.plans import Plan, make_plan
from planfreeze.target import target

__all__ = ["ARCH", "Subject", "write_sums_model"]

ARCH = "sm_90a"
INLINE_LIMIT = 1536


class Subject(Struct, frozen=True, kw_only=True):
    """A model on the command line, and its plan.

    Parameters
    ----------
    model : str
        Catalog name or TOML file.
    tp : int
        Ranks.
    """

    model: str
    tp: int

    @property
    def plan(self) -> Plan:
        """The plan with all arms."""
        options = PlanOptions(inline_limit=INLINE_LIMIT, arms=("inline", "expand", "native"))
        return make_plan(load_model(self.model), tp=self.tp, target=target(ARCH), options=options, source=self.model)

    def build_command(self, store: Path) -> tuple[str, ...]:
        """Return the arguments of planfreeze that build the plan."""
        stated = ("--model", self.model, "--tp", str(self.tp), "--arch", ARCH)
        return ("build", *stated, "--arms", "all", "--inline-limit", str(INLINE_LIMIT), "--store", str(store), "--json")


def write_sums_model(path: Path, programs: int) -> Subject:
    """Write a model whose plan is so many small Triton programs."""
    fields = {
        "name": f"sums{programs}",
        "hidden": 256,
        "intermediate": 64,
        "experts": programs,
        "top_k": 1,
        "weight_format": "mxfp4_csf",
        "programs": "launch_bench.sums:enumerate_programs",
    }
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in fields.items()))
    return Subject(model=str(path), tp=1)
