"""The MoE layer at run time: bound once to a frozen session and to prepared experts, then run call by call.

:func:`bind` checks and allocates; :meth:`MoELayer.run` launches the programs of the smallest capacity that holds the
call. A layer is also reachable as the torch operator ``planfreeze::moe_layer``, which ``torch.compile`` traces without
looking inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NoReturn, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from planfreeze import errors
from planfreeze.device import Device
from planfreeze.kernels.moe.calls import ARGUMENTS, Call, Operands, Scratch, divide, select_operands
from planfreeze.kernels.moe.experts import PreparedExperts
from planfreeze.kernels.moe.plan import CapacityPlan, MoEPlan
from planfreeze.kernels.moe.rules import ScaleMode
from planfreeze.kernels.moe.stages import Stage
from planfreeze.programs import Bound, Program
from planfreeze.sessions import Session
from planfreeze.target import target

__all__ = ["CallPrograms", "MoELayer", "bind", "moe_layer"]

ID_DTYPES = {"int32": torch.int32, "int64": torch.int64}
WORKSPACE_ALIGNMENT_BYTES = 16
"""Kernels move scratch in 16-byte loads and stores."""
CallPrograms: TypeAlias = tuple[tuple[Stage, Program], ...]
"""Loaded programs of a call in the order of their launches, each with its stage."""


# By handle, so that an operator can find a layer; kept alive by their owners alone.
layers: WeakValueDictionary[int, "MoELayer"] = WeakValueDictionary()
handles = count(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class MoELayer:
    """One MoE layer of one rank, ready to run; made by :func:`bind`.

    Parameters
    ----------
    plan : MoEPlan
        What the layer was bound by.
    experts : PreparedExperts
        Its weights.
    workspace : Tensor
        ``(plan.scratch.workspace,)`` uint8 or longer: the scratch of every call.
    scratch : Scratch
        Views of the workspace.
    programs : mapping
        Programs by capacity and type of routing ids.
    operands : mapping
        What stands in the scale arguments, by the way scales reach the kernels of a capacity.
    handle : Tensor
        The layer's number for :func:`moe_layer`, an int64 scalar on the CPU: unique in this process, valid as long as
        the layer is alive. A tensor, so that ``torch.compile`` traces one graph for all layers of a model.

    Notes
    -----
    Calls of one layer, and of all layers that share a workspace, overwrite the same scratch: they have to be ordered,
    as they are on one stream. A CUDA graph holds the addresses of scratch, weights and programs, not the objects: the
    layer, its session and the tensors of the captured call have to live, the session unclosed, as long as the graph.
    """

    plan: MoEPlan
    experts: PreparedExperts
    workspace: Tensor
    scratch: Scratch
    programs: Mapping[tuple[int, torch.dtype], CallPrograms]
    operands: Mapping[ScaleMode, Operands]
    handle: Tensor = field(init=False)

    def __post_init__(self) -> None:
        number = next(handles)
        layers[number] = self
        object.__setattr__(self, "handle", torch.tensor(number))

    def run(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute the layer on torch's current stream.

        Parameters
        ----------
        x : Tensor
            ``(tokens, hidden)`` bf16, 0 to the largest capacity tokens.
        topk_ids : Tensor
            ``(tokens, top_k)`` int32 or int64. A route to an expert that is not there contributes zero.
        topk_weights : Tensor
            ``(tokens, top_k)`` f32.
        out : Tensor, optional
            ``(tokens, hidden)`` bf16. Given, the call allocates nothing on the device; None allocates it.

        Returns
        -------
        Tensor
            ``out``: per token the weighted sum over its routes.

        Raises
        ------
        CapacityExceeded
            There are more tokens than the largest capacity holds.
        InvalidArgument
            Names the tensor whose type, shape, device, strides or alignment is another; nothing was launched.
        SessionState
            The session was closed.
        LaunchFailed
            The driver refused a launch.

        Notes
        -----
        Never waits for the device, reads no tensor on the host, and works while a CUDA graph is captured. Without
        tokens the result has no rows and nothing is launched. ``out`` may be ``x``. Autograd does not see it.
        """
        self.check_shapes(x, topk_ids, topk_weights)
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        elif not isinstance(out, Tensor) or out.shape != x.shape:
            refuse("out", f"is {describe(out)}, not a tensor of shape {tuple(x.shape)} as x")
        self.check_apart(x=x, topk_ids=topk_ids, topk_weights=topk_weights, out=out)
        # All are bound before the first is launched: a call that is refused leaves the device alone.
        bound = self.bind_call(x, topk_ids, topk_weights, out)
        if len(x):
            for ready in bound:
                ready.launch()
        return out

    def bind_call(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, out: Tensor) -> tuple[Bound, ...]:
        """Bind the programs of one call, in the order of their launches; parameters and errors as :meth:`run`."""
        return self.bind_stages(self.plan.choose(len(x)), x, topk_ids, topk_weights, out)

    def bind_stages(
        self, planned: CapacityPlan, x: Tensor, topk_ids: Tensor, topk_weights: Tensor, out: Tensor
    ) -> tuple[Bound, ...]:
        """Bind the programs of one capacity."""
        call = Call(
            planned=planned,
            experts=self.experts,
            operands=self.operands[planned.scale_mode],
            scratch=self.scratch,
            x=x,
            topk_ids=topk_ids,
            topk_weights=topk_weights,
            out=out,
        )
        programs = self.programs[planned.capacity, topk_ids.dtype]
        return tuple(
            program.bind(*ARGUMENTS[stage.name](call), is_programmatic=stage.is_programmatic)
            for stage, program in programs
        )

    def check_apart(self, **tensors: Tensor) -> None:
        """Refuse tensors of a call that lie in the workspace, which the call overwrites."""
        first = self.workspace.data_ptr()
        last = first + self.workspace.numel()
        for name, tensor in tensors.items():
            if tensor.numel() and tensor.device == self.workspace.device and first <= tensor.data_ptr() < last:
                refuse(name, "lies in the workspace, which the call overwrites")

    def check_shapes(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor) -> None:
        """Check what no program sees: shapes, and the type that selects the programs."""
        model = self.plan.sharded.model
        if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != model.hidden:
            refuse("x", f"is {describe(x)}, not a tensor of shape (tokens, {model.hidden})")
        routes = (x.shape[0], model.top_k)
        for name, value in (("topk_ids", topk_ids), ("topk_weights", topk_weights)):
            if not isinstance(value, Tensor) or value.shape != routes:
                refuse(name, f"is {describe(value)}, not a tensor of shape {routes}")
        if topk_ids.dtype not in (ID_DTYPES[id_type] for id_type in self.plan.id_types):
            refuse("topk_ids", f"has dtype {topk_ids.dtype}, and the plan serves {', '.join(self.plan.id_types)}")


def bind(plan: MoEPlan, session: Session, experts: PreparedExperts, *, workspace: Tensor | None = None) -> MoELayer:
    """Bind a layer to its programs, weights and scratch.

    Parameters
    ----------
    plan : MoEPlan
        How the layer is served.
    session : Session
        A frozen session whose plans hold the programs.
    experts : PreparedExperts
        Weights prepared for the plan's architecture and arm, on the session's device.
    workspace : Tensor, optional
        ``plan.scratch.workspace`` bytes or more, uint8, aligned to 16 bytes, which layers may share whose calls are
        ordered. None allocates one.

    Raises
    ------
    SessionState
        The session is not frozen.
    UnsuitableExperts
        The experts were prepared for another architecture, another geometry or another arm. Nothing is converted.
    UnplannedProgram
        The session holds no program for a payload of the plan; names the nearest one.
    WrongDevice
        The session's device is not of the plan's architecture.
    InvalidArgument
        The workspace or one of the experts' tensors is not on the device, has another type or is too small.
    """
    if not session.is_frozen:
        raise errors.SessionState(
            "a layer cannot be bound: the session is not frozen", "session.freeze() before bind()"
        )
    check_experts(plan, experts)
    # Every plan quantises activations, on every architecture, so a wrong one is told before a program that is missing.
    device = session.program(plan.capacities[0].stages[0][0].payload).device
    if device.capability != target(plan.arch).capability:
        raise errors.WrongDevice("the MoE layer", plan.arch, device.name, device.capability)
    programs = {
        (planned.capacity, ID_DTYPES[id_type]): tuple((stage, session.program(stage.payload)) for stage in stages)
        for planned in plan.capacities
        for id_type, stages in zip(plan.id_types, planned.stages, strict=True)
    }
    if workspace is None:
        workspace = torch.empty(plan.scratch.workspace, dtype=torch.uint8, device=device.torch_device)
    check_workspace(workspace, plan.scratch.workspace, device)
    scratch = divide(plan, workspace)
    modes = {planned.scale_mode for planned in plan.capacities}
    layer = MoELayer(
        plan=plan,
        experts=experts,
        workspace=workspace,
        scratch=scratch,
        programs=programs,
        operands={mode: select_operands(experts, scratch, mode) for mode in modes},
    )
    bind_nothing(layer, device)
    return layer


def bind_nothing(layer: MoELayer, device: Device) -> None:
    """Bind a call without tokens at every capacity: it checks weights, scales and scratch as every call does."""
    model = layer.plan.sharded.model
    x = torch.empty(0, model.hidden, dtype=torch.bfloat16, device=device.torch_device)
    factors = torch.empty(0, model.top_k, dtype=torch.float32, device=device.torch_device)
    for id_type in layer.plan.id_types:
        ids = torch.empty(0, model.top_k, dtype=ID_DTYPES[id_type], device=device.torch_device)
        for planned in layer.plan.capacities:
            layer.bind_stages(planned, x, ids, factors, x)


def check_experts(plan: MoEPlan, experts: PreparedExperts) -> None:
    """Refuse experts that were prepared for something else."""
    model = plan.sharded.model
    facts = (
        ("arch", plan.arch, experts.arch),
        ("hidden", model.hidden, experts.hidden),
        ("intermediate", plan.sharded.intermediate, experts.intermediate),
        ("experts", model.experts, experts.experts),
        ("arm", plan.arm, experts.arm),
    )
    for fact, planned, found in facts:
        if planned != found:
            raise errors.UnsuitableExperts(fact, planned, found)


def check_workspace(workspace: Tensor, size_bytes: int, device: Device) -> None:
    """Refuse a workspace that the calls of a layer do not fit."""
    if not isinstance(workspace, Tensor) or workspace.dtype != torch.uint8 or workspace.dim() != 1:
        refuse("workspace", f"is {describe(workspace)}, not a flat uint8 tensor", call="bind")
    if workspace.device != device.torch_device:
        refuse("workspace", f"is on {workspace.device}, the programs on {device.torch_device}", call="bind")
    if not workspace.is_contiguous():
        refuse("workspace", f"has stride {workspace.stride(0)}: it is not contiguous", call="bind")
    if workspace.numel() < size_bytes:
        refuse("workspace", f"has {workspace.numel()} bytes, the plan needs {size_bytes}", call="bind")
    if workspace.data_ptr() % WORKSPACE_ALIGNMENT_BYTES:
        refuse("workspace", f"at {workspace.data_ptr():#x} is not aligned to 16 bytes", call="bind")


def describe(value: object) -> str:
    """Say what a value is, in words for a message."""
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def refuse(argument: str, reason: str, *, call: str = "MoELayer.run") -> NoReturn:
    raise errors.InvalidArgument(call, argument, reason)


@torch.library.custom_op("planfreeze::moe_layer", mutates_args=())  # type: ignore[untyped-decorator]  # torch is Any
def moe_layer(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, layer: Tensor) -> Tensor:
    """Run a layer as a torch operator that returns a new tensor; ``torch.compile`` keeps it as one call.

    Parameters
    ----------
    x, topk_ids, topk_weights : Tensor
        As :meth:`MoELayer.run`.
    layer : Tensor
        :attr:`MoELayer.handle`. It only finds the layer and does not keep it: a compiled graph that takes it works as
        long as somebody holds the layer, in the process that bound it. As a tensor it is an input of the graph, also
        as an attribute of a module, so that the layers of a model share one.

    Raises
    ------
    LayerReleased
        No living layer has this handle.
    """
    number = int(layer)
    found = layers.get(number)
    if found is None:
        raise errors.LayerReleased(number)
    return found.run(x, topk_ids, topk_weights)


@moe_layer.register_fake  # type: ignore[untyped-decorator]  # torch is Any
def trace_moe_layer(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, layer: Tensor) -> Tensor:
    """Return the shape of the result. The layer is not asked: its handle has no value here."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
