"""Plans of models: they list what the enumerator of a model lists."""

import pytest
from msgspec.structs import replace

from planfreeze.errors import InvalidModel
from planfreeze.models import PlanOptions, load_model
from planfreeze.models.model import Model
from planfreeze.plans import Plan, make_plan
from planfreeze.target import target

OPTIONS = PlanOptions(inline_limit=1536)


def test_plan_of_a_model_lists_what_its_enumerator_lists():
    model = load_model("ds41")
    plan = make_plan(model, tp=4, target=target("sm_90a"), options=OPTIONS)
    assert (plan.name, plan.target.arch) == ("ds41-tp4-sm_90a", "sm_90a")
    assert len(set(plan.payloads)) == len(plan.payloads) > 0
    assert [(family.name, payload) for family, payload in plan.programs] == [
        (payload.family_name, payload) for payload in plan.payloads
    ]


def test_plan_of_a_models_own_enumerator_is_found_by_its_text(toys):
    model = Model(
        **{"name": "plain", "hidden": 128, "intermediate": 1, "experts": 1, "top_k": 1, "weight_format": "mxfp4"},
        programs="toys.models:enumerate_programs",
    )
    plan = make_plan(model, tp=1, target=target("sm_90a"), options=PlanOptions())
    assert plan == Plan(
        model="plain",
        tp=1,
        target=target("sm_90a"),
        payloads=(toys.families.AddPayload(block=128), toys.families.CopyPayload(mode="plain")),
    )


@pytest.mark.parametrize("programs", ["no_such_module:enumerate_programs", "toys.models:enumerate_nothing"])
def test_enumerator_that_cannot_be_imported_is_refused_by_name(toys, programs):
    model = replace(load_model("ds41"), programs=programs)
    with pytest.raises(InvalidModel, match=f"ds41: programs = '{programs}' cannot be imported") as raised:
        make_plan(model, tp=4, target=target("sm_90a"), options=OPTIONS)
    assert raised.value.exit_code == 2
