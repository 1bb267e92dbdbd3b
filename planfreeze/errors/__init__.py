"""Errors of planfreeze: one class per cause; the message says what happened, why it matters, what to do next."""

from planfreeze.errors import (
    asked,
    base,
    building,
    checkpoints,
    families,
    guarding,
    host_objects,
    inspecting,
    models,
    packing,
    recording,
    reporting,
    running,
    serving,
    shards,
    storing,
    tensors,
    verdicts,
)
from planfreeze.errors.asked import *
from planfreeze.errors.base import *
from planfreeze.errors.building import *
from planfreeze.errors.checkpoints import *
from planfreeze.errors.families import *
from planfreeze.errors.guarding import *
from planfreeze.errors.host_objects import *
from planfreeze.errors.inspecting import *
from planfreeze.errors.models import *
from planfreeze.errors.packing import *
from planfreeze.errors.recording import *
from planfreeze.errors.reporting import *
from planfreeze.errors.running import *
from planfreeze.errors.serving import *
from planfreeze.errors.shards import *
from planfreeze.errors.storing import *
from planfreeze.errors.tensors import *
from planfreeze.errors.verdicts import *

__all__ = [
    *asked.__all__,
    *base.__all__,
    *building.__all__,
    *checkpoints.__all__,
    *families.__all__,
    *guarding.__all__,
    *host_objects.__all__,
    *inspecting.__all__,
    *models.__all__,
    *packing.__all__,
    *recording.__all__,
    *reporting.__all__,
    *running.__all__,
    *serving.__all__,
    *shards.__all__,
    *storing.__all__,
    *tensors.__all__,
    *verdicts.__all__,
]
