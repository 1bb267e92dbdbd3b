"""Weight preparation: the experts of one layer, from logical MXFP4 tensors to the bytes that kernels read.

Prepared once, when a model is loaded. The result belongs to one architecture, and keeps the scales of its projections
in the single form that the rules give its weights; nothing is converted at run time.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.moe.geometry import GROUP, check_hidden, check_intermediate, layout
from planfreeze.kernels.moe.rules import ShardedModel, choose_arms
from planfreeze.kernels.moe.weights import SourceOrder, pack_w2, pack_w13
from planfreeze.kernels.scales import csf_batch, inline
from planfreeze.kernels.scales.csf_batch import CsfBatch
from planfreeze.kernels.scales.geometry import ScaleGeometry
from planfreeze.kernels.scales.native import expert_chunks, native_plane
from planfreeze.kernels.scales.pools import ScratchPool
from planfreeze.kernels.scales.storage import InlineScales
from planfreeze.models import Arm, Model, PlanOptions, WeightFormat
from planfreeze.settings import read_settings

__all__ = ["PreparedExperts", "Projection", "Scales", "prepare_experts", "select_scales"]

Projection = Literal["w13", "w2"]
Scales: TypeAlias = Tensor | InlineScales | CsfBatch
"""A native plane, inline storage, or a batch that is decoded to a native plane before every call."""

NAN_SCALE = 255


class PreparedExperts(Struct, frozen=True, kw_only=True, eq=False):
    """The experts of one layer, ready for kernels; made by :func:`prepare_experts`.

    Parameters
    ----------
    arch : str
        Architecture whose kernels read the planes.
    arm : str
        How scales reach the kernels: ``native``, ``inline`` or ``expand``.
    hidden, intermediate, experts : int
        Hidden size, columns of the intermediate on this rank, experts.
    w13, w2 : Tensor
        ``(experts, intermediate * hidden)`` and half as many uint8: packed FP4 codes, up rows before gate rows.
    w13_scales, w2_scales : Tensor, InlineScales or CsfBatch
        By ``arm``: native planes, ``(experts, rows * columns)`` uint8; inline storage; or a batch.
    alpha1, alpha2 : Tensor
        ``(experts,)`` f32 factors of the first and second projection.
    """

    arch: str
    arm: Arm
    hidden: int
    intermediate: int
    experts: int
    w13: Tensor
    w2: Tensor
    w13_scales: Scales
    w2_scales: Scales
    alpha1: Tensor
    alpha2: Tensor

    @property
    def is_inline(self) -> bool:
        """Whether kernels read the scales compressed. Such experts have no decoder and no native plane."""
        return self.arm == "inline"

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes on the device by part."""
        return {
            "w13": tensor_bytes(self.w13),
            "w2": tensor_bytes(self.w2),
            "w13_scales": scale_bytes(self.w13_scales),
            "w2_scales": scale_bytes(self.w2_scales),
            "alpha1": tensor_bytes(self.alpha1),
            "alpha2": tensor_bytes(self.alpha2),
        }

    @property
    def size_bytes(self) -> int:
        """Bytes on the device."""
        return sum(self.sizes.values())


def scale_bytes(scales: Scales) -> int:
    if isinstance(scales, CsfBatch):
        return scales.size_bytes
    return tensor_bytes(scales.storage if isinstance(scales, InlineScales) else scales)


def tensor_bytes(tensor: Tensor) -> int:
    size_bytes: int = tensor.nbytes
    return size_bytes


def select_scales(experts: PreparedExperts, projection: Projection) -> tuple[Tensor, ...]:
    """Return the operands that a kernel takes for the scales of a projection.

    Parameters
    ----------
    experts : PreparedExperts
        Experts of the ``native`` or ``inline`` arm.
    projection : str
        ``w13`` or ``w2``.

    Returns
    -------
    tuple of Tensor
        ``(plane,)``, or ``(tiles, bases, raw tiles)`` of inline storage.

    Raises
    ------
    InvalidExperts
        There is no such projection.
    UndecodedScales
        The scales are a CSF batch, which kernels do not read.
    """
    if projection not in get_args(Projection):
        raise errors.InvalidExperts("projection", repr(projection), " or ".join(get_args(Projection)))
    scales = experts.w13_scales if projection == "w13" else experts.w2_scales
    if isinstance(scales, CsfBatch):
        raise errors.UndecodedScales(projection)
    return scales.parts() if isinstance(scales, InlineScales) else (scales,)


def prepare_experts(
    *,
    w13: Tensor,
    w13_scales: Tensor,
    w2: Tensor,
    w2_scales: Tensor,
    arch: str,
    weight_format: WeightFormat,
    is_csf_inline: bool | None = None,
    source_order: SourceOrder = "up_gate",
    alpha1: Tensor | None = None,
    alpha2: Tensor | None = None,
    input_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
    pool: ScratchPool | None = None,
) -> PreparedExperts:
    """Prepare the experts of one layer.

    Parameters
    ----------
    w13 : Tensor
        ``(experts, 2 * intermediate, hidden / 2)`` uint8 E2M1 codes, the even K in the low nibble. All tensors are
        contiguous and on one device, CPU or CUDA; the result is there too. None is changed.
    w13_scales : Tensor
        ``(experts, 2 * intermediate, hidden / 32)`` uint8, E8M0; bytes above 247 become 247, 255 is refused.
    w2, w2_scales : Tensor
        ``(experts, hidden, intermediate / 2)`` and ``(experts, hidden, intermediate / 32)``, likewise.
    arch : str
        Architecture to prepare for.
    weight_format : str
        ``mxfp4``: scales stay uncompressed; ``mxfp4_csf``: they are compressed.
    is_csf_inline : bool, optional
        Whether compressed scales may be read inline; None takes the setting ``PLANFREEZE_CSF_INLINE``.
    source_order : str
        Which half of the rows of ``w13`` and ``w13_scales`` comes first. Prepared experts have up rows first.
    alpha1, input_scale : Tensor, optional
        f32 of length 1 or ``experts``; their product multiplies the sums of the first projection. Ones by default.
    alpha2, down_scale : Tensor, optional
        Likewise for the second projection.
    pool : ScratchPool, optional
        Where intermediates come from; by default a pool of this call. Do not call this inside ``pool.use()``.

    Returns
    -------
    PreparedExperts
        With the arm that the rules choose for these weights: ``native`` for ``mxfp4``; for ``mxfp4_csf`` ``inline``
        where ``intermediate % 128 == 64`` and ``is_csf_inline``, else ``expand``.

    Raises
    ------
    InvalidExperts
        A tensor has another type, shape, device or stride than this, or an option is unknown; the error names it.
    NanScale
        A scale is the NaN of E8M0; the error names projection, expert, row and column of the source.
    UnsupportedGeometry
        ``hidden`` or ``intermediate`` is not a multiple of 256 or 64.
    UnknownArch
        planfreeze does not compile for ``arch``.
    ScalesDiffer
        Compressed scales do not decode to what they were made from.

    Notes
    -----
    Beside sources and result this takes one projection's native scale plane and some 256 MiB of intermediates at a
    time, from the pool. The host waits for the device.
    """
    layout(arch)
    if is_csf_inline is None:
        is_csf_inline = read_settings().is_csf_inline
    if type(is_csf_inline) is not bool:
        raise errors.InvalidExperts("is_csf_inline", repr(is_csf_inline), "True, False or None")
    experts, hidden, intermediate = check_sources(w13, w13_scales, w2, w2_scales)
    sharded = describe_weights(hidden, intermediate, experts, weight_format)
    # The limit is a matter of plans; no arm depends on it.
    arm = choose_arms(sharded, PlanOptions(inline_limit=0, is_csf_inline=is_csf_inline))[0]
    if source_order not in get_args(SourceOrder):
        raise errors.InvalidExperts("source_order", repr(source_order), " or ".join(get_args(SourceOrder)))
    factors = {"alpha1": alpha1, "input_scale": input_scale, "alpha2": alpha2, "down_scale": down_scale}
    for name, factor in factors.items():
        check_factor(name, factor, experts, w13.device)
    check_numbers("w13_scales", w13_scales)
    check_numbers("w2_scales", w2_scales)

    pool = pool or ScratchPool(w13.device)
    fc1 = ScaleGeometry(rows=2 * intermediate, columns=hidden // GROUP, group_rows=intermediate)
    fc2 = ScaleGeometry(rows=hidden, columns=intermediate // GROUP, group_rows=hidden)
    return PreparedExperts(
        arch=arch,
        arm=arm,
        hidden=hidden,
        intermediate=intermediate,
        experts=experts,
        w13=pack_codes(w13, lambda codes: pack_w13(codes, arch, source_order=source_order), pool),
        w2=pack_codes(w2, lambda codes: pack_w2(codes, arch), pool),
        w13_scales=prepare_scales(fc1, w13_scales, arm, intermediate if source_order == "gate_up" else 0, pool),
        w2_scales=prepare_scales(fc2, w2_scales, arm, 0, pool),
        alpha1=fold(alpha1, input_scale, experts, w13.device),
        alpha2=fold(alpha2, down_scale, experts, w13.device),
    )


def describe_weights(hidden: int, intermediate: int, experts: int, weight_format: WeightFormat) -> ShardedModel:
    """Return the weights as the rules know them: a model on a rank of its own."""
    if weight_format not in get_args(WeightFormat):
        raise errors.InvalidExperts("weight_format", repr(weight_format), " or ".join(get_args(WeightFormat)))
    model = Model(
        name="experts",
        hidden=hidden,
        intermediate=intermediate,
        experts=experts,
        # No rule about weights asks how many routes a token takes.
        top_k=1,
        weight_format=weight_format,
    )
    return ShardedModel(model=model, tp=1, intermediate=intermediate)


def check_sources(w13: Tensor, w13_scales: Tensor, w2: Tensor, w2_scales: Tensor) -> tuple[int, int, int]:
    """Return experts, hidden and intermediate size of weights that fit together, or refuse them."""
    for name, codes in (("w13", w13), ("w2", w2)):
        if codes.dim() != 3 or not codes.numel():
            raise errors.InvalidExperts(name, f"of shape {tuple(codes.shape)}", "[experts, rows, K/2]")
    experts, rows, half_hidden = w13.shape
    hidden, intermediate = 2 * half_hidden, rows // 2
    check_hidden(hidden)
    check_intermediate(intermediate)
    expected = {
        "w13": (w13, (experts, 2 * intermediate, hidden // 2)),
        "w13_scales": (w13_scales, (experts, 2 * intermediate, hidden // GROUP)),
        "w2": (w2, (experts, hidden, intermediate // 2)),
        "w2_scales": (w2_scales, (experts, hidden, intermediate // GROUP)),
    }
    for name, (tensor, shape) in expected.items():
        check_tensor(name, tensor, torch.uint8, w13.device)
        if tuple(tensor.shape) != shape:
            raise errors.InvalidExperts(name, f"of shape {tuple(tensor.shape)}", f"{list(shape)}, as w13 asks for")
    return experts, hidden, intermediate


def check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    if tensor.dtype != dtype:
        raise errors.InvalidExperts(name, str(tensor.dtype), str(dtype))
    if tensor.device != device:
        raise errors.InvalidExperts(name, f"on {tensor.device}", f"on {device} like w13")
    if not tensor.is_contiguous():
        raise errors.InvalidExperts(name, f"strided {tensor.stride()} over {tuple(tensor.shape)}", "contiguous")


def check_factor(name: str, factor: Tensor | None, experts: int, device: torch.device) -> None:
    if factor is None:
        return
    check_tensor(name, factor, torch.float32, device)
    if tuple(factor.shape) not in ((1,), (experts,)):
        raise errors.InvalidExperts(name, f"of shape {tuple(factor.shape)}", f"[1] or [{experts}]")


def check_numbers(name: str, scales: Tensor) -> None:
    """Refuse a NaN, naming the first."""
    if int(scales.max()) < NAN_SCALE:
        return
    expert = int(scales.flatten(1).amax(1).argmax())
    place = int(scales[expert].flatten().argmax())
    row, column = divmod(place, scales.shape[2])
    raise errors.NanScale(name, row, column, expert)


def pack_codes(codes: Tensor, pack: Callable[[Tensor], Tensor], pool: ScratchPool) -> Tensor:
    """Pack a few experts at a time: only the result is allocated outside of the pool."""
    packed = codes.new_empty(len(codes), codes[0].numel())
    for first, last in expert_chunks(len(codes), codes[0].numel()):
        with pool.use():
            packed[first:last] = pack(codes[first:last])
    return packed


def prepare_scales(geometry: ScaleGeometry, scales: Tensor, arm: Arm, rotation: int, pool: ScratchPool) -> Scales:
    """Return the form of an arm. The native plane lives in the pool, and no longer than this call."""
    with pool.use():
        plane = native_plane(geometry, scales, rotation=rotation)
    if arm == "inline":
        return inline.encode(geometry, plane, pool=pool)
    if arm == "expand":
        return csf_batch.encode(geometry, plane, pool=pool)
    return plane.clone()


def fold(one: Tensor | None, two: Tensor | None, experts: int, device: torch.device) -> Tensor:
    """Return the products of two factors for every expert, in fp32."""
    product = torch.ones(experts, dtype=torch.float32, device=device)
    for factor in (one, two):
        if factor is not None:
            product = product * factor
    return product
