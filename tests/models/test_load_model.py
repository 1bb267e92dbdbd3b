"""Models from the catalog and from TOML files."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from planfreeze.errors import (
    InvalidModelField,
    MalformedModelFile,
    MissingModelField,
    PlanfreezeError,
    UnknownArch,
    UnknownModel,
    UnknownModelField,
    UnsupportedActivation,
)
from planfreeze.models import Model, catalog_names, load_model

SMALL = {"hidden": 1024, "intermediate": 320, "experts": 8, "top_k": 2, "weight_format": '"mxfp4_csf"'}


def write(folder: Path, fields: dict[str, object], name: str = "small.toml") -> str:
    path = folder / name
    path.write_text("".join(f"{key} = {value}\n" for key, value in fields.items()))
    return str(path)


def test_the_catalog_lists_its_models() -> None:
    assert catalog_names() == ("ds41", "kimi_k3")


@pytest.mark.parametrize(
    ("name", "hidden", "intermediate", "experts", "top_k", "tp"),
    [("ds41", 5120, 2304, 384, 6, 4), ("kimi_k3", 3584, 3072, 896, 16, 16)],
)
def test_a_catalog_model_has_its_published_dimensions(
    name: str, hidden: int, intermediate: int, experts: int, top_k: int, tp: int
) -> None:
    assert replace(load_model(name), budgets=()) == Model(
        name=name,
        hidden=hidden,
        intermediate=intermediate,
        experts=experts,
        top_k=top_k,
        weight_format="mxfp4_csf",
        activation="silu",
        activation_limit=None,
        fast_math=False,
        id_types=("int32", "int64"),
        capacities=(8, 64, 128, 512, 1536, 2048, 4096),
        default_arch="sm_120a",
        default_tp=tp,
        programs="planfreeze.kernels.moe.programs:enumerate_programs",
    )


def test_a_toml_file_needs_only_the_geometry(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, SMALL))
    assert (model.name, model.hidden, model.intermediate, model.experts, model.top_k) == (
        "small",
        1024,
        320,
        8,
        2,
    )
    assert model.default_tp is None


def test_a_toml_file_may_state_every_field(tmp_path: Path) -> None:
    stated = SMALL | {
        "name": '"mine"',
        "activation": '"silu"',
        "activation_limit": 7,
        "fast_math": "true",
        "id_types": '["int64", "int32"]',
        "capacities": "[64, 8, 64]",
        "default_arch": '"sm_90a"',
        "default_tp": 1,
        "programs": '"mine.kernels:list_programs"',
    }
    model = load_model(write(tmp_path, stated))
    assert model.name == "mine"
    assert model.activation_limit == 7.0 and type(model.activation_limit) is float
    assert model.fast_math is True
    assert model.id_types == ("int32", "int64")
    assert model.capacities == (8, 64)
    assert (model.default_arch, model.default_tp) == ("sm_90a", 1)
    assert model.programs == "mine.kernels:list_programs"


def test_a_file_name_becomes_a_name_that_references_can_hold(tmp_path: Path) -> None:
    assert load_model(write(tmp_path, SMALL, "my model (v2).toml")).name == "my-model-v2"


@pytest.mark.parametrize(("mistyped", "near"), [("ds4", "ds41"), ("kimi-k3", "kimi_k3"), ("zzzzzz", None)])
def test_an_unknown_model_is_refused_with_the_nearest_name(mistyped: str, near: str | None) -> None:
    with pytest.raises(UnknownModel) as caught:
        load_model(mistyped)
    assert caught.value.near == near
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert repr(mistyped) in message and "ds41, kimi_k3" in message
    assert "TOML" in message and "config.json" in message
    assert (f"Did you mean {near}?" in message) == (near is not None)


@pytest.mark.parametrize("missing", list(SMALL))
def test_a_missing_key_is_named(tmp_path: Path, missing: str) -> None:
    fields = {key: value for key, value in SMALL.items() if key != missing}
    with pytest.raises(MissingModelField, match=f"lacks {missing}"):
        load_model(write(tmp_path, fields))


def test_an_unknown_field_is_refused_with_the_nearest_field(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelField, match=r"hiden, .*Did you mean hidden\?"):
        load_model(write(tmp_path, SMALL | {"hiden": 1024}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden", '"1024"'),
        ("hidden", "1024.0"),
        ("hidden", "true"),
        ("hidden", 0),
        ("intermediate", -320),
        ("experts", 2**31),
        ("top_k", 9),
        ("weight_format", '"fp8"'),
        ("weight_format", "[1]"),
        ("activation", 1),
        ("activation_limit", 0),
        ("activation_limit", "nan"),
        ("activation_limit", "inf"),
        ("activation_limit", "true"),
        ("fast_math", 1),
        ("id_types", '["int16"]'),
        ("id_types", '"int32"'),
        ("id_types", "[]"),
        ("capacities", 8),
        ("capacities", "[]"),
        ("capacities", "[8, 0]"),
        ("capacities", "[true]"),
        ("default_arch", 90),
        ("default_tp", 0),
        ("programs", '"no_colon"'),
        ("name", '"a/b"'),
        ("name", '"../up"'),
    ],
)
def test_a_value_of_another_type_or_range_is_refused(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(InvalidModelField) as caught:
        load_model(write(tmp_path, SMALL | {field: value}))
    assert caught.value.name == field
    assert f"{field} = " in str(caught.value)


def test_another_activation_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedActivation, match="the activation is gelu; "):
        load_model(write(tmp_path, SMALL | {"activation": '"gelu"'}))


def test_an_unknown_default_arch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownArch, match="sm_90 is not"):
        load_model(write(tmp_path, SMALL | {"default_arch": '"sm_90"'}))


@pytest.mark.parametrize(
    ("name", "content", "language"),
    [
        ("bad.toml", b"hidden = = 1", "TOML"),
        ("bad.toml", b"\xff\xfe", "TOML"),
        ("bad.json", b"{", "JSON"),
        ("bad.json", b"[1, 2]", "JSON"),
        ("bad.json", b"[" * 100_000, "JSON"),
        ("bad.yaml", b"hidden: 1", "TOML or JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, language: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MalformedModelFile, match=f"is not valid {language}: "):
        load_model(str(path))


def test_errors_survive_pickling(tmp_path: Path) -> None:
    with pytest.raises(PlanfreezeError) as caught:
        load_model(write(tmp_path, SMALL | {"top_k": 9}))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_loading_a_model_imports_no_kernel_and_no_compiler() -> None:
    program = (
        "import sys, planfreeze.models as m; m.load_model('ds41');"
        "heavy = {'torch', 'triton', 'cutlass', 'cuda', 'numpy'} & set(sys.modules);"
        "print(sorted(heavy | {n for n in sys.modules if n.startswith('planfreeze.kernels')}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
