"""Fixtures of all tests, and which tests are skipped where there is no device."""

import pytest

from .interpreters import (
    hidden_frameworks,
    hide_frameworks,
    interpreter,
    small_interpreter,
    triton_interpreter,
    wait_for,
    with_triton_alone,
    without_frameworks,
)
from .oldest_triton import oldest_triton
from .shared import link_toolchains, model_store, toolchains
from .stock import stock
from .toys import built, frozen, make_package, store, toys

__all__ = (
    "built",
    "frozen",
    "hidden_frameworks",
    "hide_frameworks",
    "interpreter",
    "link_toolchains",
    "make_package",
    "model_store",
    "oldest_triton",
    "small_interpreter",
    "stock",
    "store",
    "toolchains",
    "toys",
    "triton_interpreter",
    "wait_for",
    "with_triton_alone",
    "without_frameworks",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a device where there is none; tools/h200 runs them where there is one."""
    on_device = [item for item in items if item.get_closest_marker("gpu")]
    if not on_device:
        return
    import torch

    if not torch.cuda.is_available():
        for item in on_device:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
