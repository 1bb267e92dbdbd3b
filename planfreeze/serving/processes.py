"""Processes that are served: what happens when one imports a compiler."""

from collections.abc import Callable
from functools import partial
from types import ModuleType

from planfreeze.serving.cute import server as cute_server
from planfreeze.serving.programs import ServedPlan, Server, load_plan
from planfreeze.serving.triton import server as triton_server
from planfreeze.settings import InheritedSettings, store_path

__all__ = ["SERVERS", "arrived"]

SERVERS: tuple[Server, ...] = (triton_server, cute_server)


def arrived(module: ModuleType, settings: InheritedSettings) -> None:
    """Hook a module of a compiler that was just imported; the plan is read at the first one.

    Raises
    ------
    PlanMissing, StoreMissing, UntrustedStore, DamagedPlan, MissingPrograms, DamagedPrograms, UnservablePlan
        The plan or one of its programs is not there, or not for what is installed here.
    """
    assert settings.plan is not None
    served: Callable[[], ServedPlan] = partial(
        load_plan, settings.plan, store_path(settings), settings.is_store_trusted, settings.log
    )
    for server in SERVERS:
        if module.__name__ in server.modules:
            server.install(module, served)
