"""Models from Hugging Face configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from planfreeze.errors import (
    InvalidModelField,
    MissingModelField,
    NotMixtureOfExperts,
    UnsupportedActivation,
)
from planfreeze.models import load_model

CONFIGS = Path(__file__).parent / "configs"
QWEN3: dict[str, Any] = json.loads((CONFIGS / "qwen3_30b_a3b.json").read_text())


def write(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "model.json"
    path.write_text(json.dumps(config))
    return str(path)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in QWEN3.items() if name != key}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("deepseek_v3", (7168, 2048, 256, 8)), ("qwen3_30b_a3b", (2048, 768, 128, 8))],
)
def test_a_published_configuration_gives_its_dimensions(name: str, sizes: tuple[int, ...]) -> None:
    model = load_model(str(CONFIGS / f"{name}.json"))
    assert (model.hidden, model.intermediate, model.experts, model.top_k) == sizes
    assert (model.name, model.weight_format, model.activation) == (name, "mxfp4", "silu")
    assert model.activation_limit is None


def test_gpt_oss_is_refused_by_the_name_of_its_activation() -> None:
    with pytest.raises(UnsupportedActivation, match=r"clamped SwiGLU with alpha \(SwiGLU-OAI\)") as caught:
        load_model(str(CONFIGS / "gpt_oss_120b.json"))
    assert caught.value.exit_code == 2


def test_a_swiglu_with_alpha_is_refused_whatever_the_model_is_called(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedActivation, match="states swiglu_alpha"):
        load_model(write(tmp_path, QWEN3 | {"swiglu_alpha": 1.702}))


def test_a_plain_clamp_is_the_activation_limit(tmp_path: Path) -> None:
    assert load_model(write(tmp_path, QWEN3 | {"swiglu_limit": 10})).activation_limit == 10.0


@pytest.mark.parametrize("activation", ["gelu", "relu2", "silu_and_mul"])
def test_another_activation_is_refused_by_name(tmp_path: Path, activation: str) -> None:
    with pytest.raises(UnsupportedActivation, match=f"the activation is {activation}; "):
        load_model(write(tmp_path, QWEN3 | {"hidden_act": activation}))


def test_swish_is_silu(tmp_path: Path) -> None:
    assert load_model(write(tmp_path, QWEN3 | {"hidden_act": "swish"})).activation == "silu"


def test_the_text_part_of_a_multimodal_configuration_wins(tmp_path: Path) -> None:
    config = {"model_type": "outer", "hidden_size": 64, "text_config": QWEN3 | {"num_local_experts": None}}
    model = load_model(write(tmp_path, config))
    assert (model.hidden, model.experts) == (2048, 128)


@pytest.mark.parametrize("key", ["n_routed_experts", "num_local_experts"])
def test_experts_are_counted_under_other_names(tmp_path: Path, key: str) -> None:
    assert load_model(write(tmp_path, without("num_experts") | {key: 64})).experts == 64


@pytest.mark.parametrize("key", ["experts_per_token", "num_experts_per_token"])
def test_routes_are_counted_under_other_names(tmp_path: Path, key: str) -> None:
    assert load_model(write(tmp_path, without("num_experts_per_tok") | {key: 4})).top_k == 4


def test_local_experts_have_the_plain_intermediate_size(tmp_path: Path) -> None:
    config = {
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    assert load_model(write(tmp_path, config)).intermediate == 14336


@pytest.mark.parametrize("count", [None, 0, 1])
def test_a_dense_model_is_refused(tmp_path: Path, count: int | None) -> None:
    with pytest.raises(NotMixtureOfExperts, match="counts no routed experts"):
        load_model(write(tmp_path, QWEN3 | {"num_experts": count}))


@pytest.mark.parametrize("key", ["hidden_size", "moe_intermediate_size", "num_experts_per_tok", "hidden_act"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(MissingModelField, match=f"lacks {key}"):
        load_model(write(tmp_path, without(key)))


@pytest.mark.parametrize("value", ["2048", 2048.0, True, [2048], 0])
def test_a_size_of_another_type_is_refused_under_its_own_key(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidModelField, match="hidden_size = "):
        load_model(write(tmp_path, QWEN3 | {"hidden_size": value}))


def test_keys_that_disagree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelField, match="experts_per_token = 4 is not the 8 that num_experts_per_tok"):
        load_model(write(tmp_path, QWEN3 | {"experts_per_token": 4}))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("models--Qwen--Qwen3-30B-A3B/snapshots/0123abcd", "Qwen3-30B-A3B"),
    ],
)
def test_a_configuration_is_named_after_its_folder(tmp_path: Path, folder: str, name: str) -> None:
    path = tmp_path / folder / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(QWEN3))
    assert load_model(str(path)).name == name
    assert load_model(str(path.parent)) == load_model(str(path))
