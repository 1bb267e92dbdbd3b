"""Families that tests declare."""

from types import SimpleNamespace
from typing import Any

from planfreeze.declarations import (
    triton_family,
)
from planfreeze.declared import DeclaredFamily
from planfreeze.target import target

SM_90A = target("sm_90a")


def grid_of_one(scalars: Any, constants: Any) -> tuple[int]:
    return (1,)


def declare(*arguments: Any, name: str = "sample", **declared: Any) -> DeclaredFamily:
    return triton_family(kernel="no.such:kernel", arguments=arguments, name=name, **declared)(grid_of_one)


def address(value: int, kind: str = "f32") -> SimpleNamespace:
    return SimpleNamespace(data_ptr=lambda: value, dtype=kind)
