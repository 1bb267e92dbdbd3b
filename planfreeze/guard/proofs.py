"""Proofs: deliberate attempts that show the armed guard is awake."""

from contextlib import suppress
from importlib.util import find_spec
from typing import Literal

from planfreeze import errors
from planfreeze.guard.roads import LazyRoad
from planfreeze.guard.watch import ROADS, ProbeStopped, probing, watch

__all__ = ["Proof", "prove", "self_test"]

Proof = Literal[True, False, "not installed"]


def prove(name: str) -> Proof:
    """Attempt to compile by one road in this process and thread, outside the counts of all guards.

    Imports the road's compiler, so call it where that is welcome: in a child process.

    Returns
    -------
    bool or str
        True: every door of the road stopped its attempt before the compiler. False: one did not, or no guard is
        armed (nothing is attempted then). ``"not installed"``: the compiler cannot be imported here.

    Raises
    ------
    UnknownRoad
        There is no road of that name.
    """
    road = next((road for road in ROADS if road.name == name), None)
    if road is None:
        raise errors.UnknownRoad(name, tuple(road.name for road in ROADS))
    if not is_importable(road):
        return "not installed"
    return bool(watch.armed) and all(is_stopped(road, index) for index in range(len(road.attempts)))


def self_test() -> dict[str, Proof]:
    """Prove every road; the result is as in :func:`prove`, by road name."""
    return {road.name: prove(road.name) for road in ROADS}


def is_importable(road: LazyRoad) -> bool:
    """Tell whether the modules of a road can be found; finding one imports the packages above it."""
    try:
        return all(find_spec(name) is not None for name in (road.package, road.modules[0]))
    except ImportError:
        return False


def is_stopped(road: LazyRoad, index: int) -> bool:
    """Make one deliberate attempt; whatever else becomes of it, also at another road's hook, it was not stopped."""
    probing.is_probing = True
    try:
        with suppress(Exception):
            road.attempts[index]()
    except ProbeStopped as stopped:
        return stopped.attempt.road == road.name
    finally:
        probing.is_probing = False
    return False
