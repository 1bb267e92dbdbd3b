"""Errors of planfreeze: one class per cause; the message says what happened, why it matters, what to do next."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Which module has which, so that a process imports those it can meet: one that serves meets half of them.
NAMES = {
    "asked": (
        "DecoratedPayload DuplicateFamily InvalidCapacity InvalidInlineLimit InvalidPayload InvalidPlanReference "
        "InvalidSetting OutputUnwritable SeveralArms UnavailableArm UnknownArch UnknownArm UnknownFamily "
        "UnknownIdType UnnameableConstant UnservedCapacity"
    ),
    "base": "PlanfreezeError",
    "building": (
        "CompileFailed CompilerMissing DriverRefused InvalidCubin KnobChanged SourceChanged SourceUnreadable "
        "ToolchainUnreadable UnexpectedCubin UnparsableSource WorkerDied WrongArch"
    ),
    "checkpoints": (
        "AmbiguousLayout ArmsDiffer CheckpointMissing CheckpointUnwritable ExpertsDiffer InvalidLayout "
        "MalformedIndex NanScale OutputNotFinite RankOutOfRange TensorMissing UnexpectedDtype UnexpectedTensor "
        "UnknownLayer UnknownLayout"
    ),
    "families": (
        "AmbiguousEntryPoint BrokenEntryPoint ContradictoryMarking FamilyTooLarge InvalidDeclaration "
        "UnfreezableKernel UnkeyedCapture UnlistedFamily"
    ),
    "guarding": "CompilationForbidden GuardAsleep GuardLogFailed UnknownMode UnknownRoad UnwatchableRoad",
    "host_objects": "HostObjectUnusable InvalidHostObject",
    "inspecting": "BudgetExceeded DisassemblerMissing DisassemblyFailed ProgramMissing UnknownBudgetFamily",
    "models": (
        "InvalidGeometry InvalidModel InvalidModelField InvalidRanks MalformedModelFile MissingModelField "
        "NotMixtureOfExperts UnevenShards UnknownModel UnknownModelField UnsupportedActivation UntiledModel "
        "UntiledShards"
    ),
    "packing": (
        "DamagedEntries DamagedPack PackMissing PackTooNew PackUnwritable RecordsDiffer UnreadableKey UntrustedPack"
    ),
    "recording": (
        "IncompleteRecording InvalidRecording NothingRecorded RecordedOtherwise RecordingUnwritable "
        "ServedElsewhere Unrecordable UnservablePlan"
    ),
    "reporting": "PageUnwritable RecordedElsewhere",
    "running": "CommandMissing CommandNotExecutable ReportUnwritable ServedLogFailed StartNotWatched",
    "serving": (
        "CapacityExceeded DamagedPrograms DeviceMissing EmptyPlan ExtraMissing InvalidArgument KernelsDiffer "
        "LaunchFailed LayerReleased MissingPrograms PlanMissing PlansDisagree SessionState UnplannedProgram "
        "UnsuitableExperts UnsupportedDevice WrongDevice"
    ),
    "shards": "DamagedShard ShardIsText ShardMissing TruncatedShard",
    "storing": (
        "DamagedEntry DamagedPlan DamagedRecord DamagedStore HomeMissing InvalidEntryName KeyLocked MissingEntry "
        "OtherRecordFormat PlanTooNew StoreMissing StoreTooNew StoreUnusable UntrustedStore"
    ),
    "tensors": "InvalidExperts InvalidScales InvalidWeights ScalesDiffer UndecodedScales UnsupportedGeometry",
    "verdicts": "BuildIncomplete PlanDiffers ProgramNotStored ProgramsDiffer ServingHindered StoreOverBudget",
}
HOMES = {name: module for module, names in NAMES.items() for name in names.split()}
__all__ = [*HOMES]


def __getattr__(name: str) -> Any:
    """Import an error at its first use."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the errors, imported or not."""
    return sorted({*globals(), *HOMES})
