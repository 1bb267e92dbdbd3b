"""Fields of a model out of a Hugging Face ``config.json``."""

from collections.abc import Mapping
from typing import Any

from planfreeze import errors
from planfreeze.models.model import COUNT, is_count

__all__ = ["read_huggingface"]

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")


def read_huggingface(config: Mapping[str, Any], *, path: str) -> dict[str, Any]:
    """Return the fields of the model a configuration describes; its weights are taken as uncompressed MXFP4.

    Parameters
    ----------
    config : mapping
        The parsed ``config.json``. A ``text_config`` inside wins over the keys beside it. Null means absent.
    path : str
        Path that errors name.

    Raises
    ------
    NotMixtureOfExperts
        No key counts routed experts, or it counts none.
    MissingModelField
        A size is not stated.
    InvalidModelField
        Two keys for one size disagree, or a value has another type.
    UnsupportedActivation
        The activation is not gated SiLU, or a variant of it that the kernels do not compute.

    Notes
    -----
    Configurations that count ``num_local_experts`` and state no ``moe_intermediate_size`` give the size of
    one expert as ``intermediate_size``.
    """
    nested = config.get("text_config")
    stated = drop_nulls(config) | (drop_nulls(nested) if isinstance(nested, dict) else {})
    # Some dense models count one expert, or none.
    if all(stated.get(key, 0) in (0, 1) for key in EXPERTS):
        raise errors.NotMixtureOfExperts(path, EXPERTS)
    is_width_plain = "num_local_experts" in stated and "moe_intermediate_size" not in stated
    widths = ("intermediate_size",) if is_width_plain else ("moe_intermediate_size",)
    fields: dict[str, Any] = {
        "hidden": read_size(stated, ("hidden_size",), path),
        "intermediate": read_size(stated, widths, path),
        "experts": read_size(stated, EXPERTS, path),
        "top_k": read_size(stated, TOP_K, path),
        "weight_format": "mxfp4",
        "activation": read_activation(stated, (config.get("model_type"), stated.get("model_type")), path),
    }
    if "swiglu_limit" in stated:
        fields["activation_limit"] = stated["swiglu_limit"]
    return fields


def drop_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def read_size(stated: Mapping[str, Any], keys: tuple[str, ...], path: str) -> int:
    """Return the size the keys agree on."""
    found = {key: stated[key] for key in keys if key in stated}
    if not found:
        raise errors.MissingModelField(path, keys)
    first = next(iter(found))
    for key, value in found.items():
        if not is_count(value):
            raise errors.InvalidModelField(path, key, value, COUNT)
        if value != found[first]:
            raise errors.InvalidModelField(path, key, value, f"the {found[first]} that {first} states")
    return int(found[first])


def read_activation(stated: Mapping[str, Any], model_types: tuple[object, ...], path: str) -> str:
    """Return the activation's name; refuse gated SiLU with more than a clamp."""
    # gpt-oss states the clamp alone; its alpha of 1.702 and the added 1 are constants of the model's code.
    if "gpt_oss" in model_types:
        raise errors.UnsupportedActivation(
            path, "the clamped SwiGLU with alpha (SwiGLU-OAI)", "model_type gpt_oss implies it"
        )
    for key in stated:
        if key.startswith("swiglu_") and key != "swiglu_limit":
            raise errors.UnsupportedActivation(
                path, "a SwiGLU with more than a clamp (SwiGLU-OAI)", f"its configuration states {key}"
            )
    activation = stated.get("hidden_act")
    if activation is None:
        raise errors.MissingModelField(path, ("hidden_act",))
    # "swish" is the older name of SiLU in these files.
    return "silu" if activation == "swish" else activation
