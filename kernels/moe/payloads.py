"""What the payloads of the MoE families have in common: the limits of their fields, and how one is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

from planfreeze import errors
from planfreeze.kernels.moe.geometry import is_compact
from planfreeze.payload import Field, Payload

__all__ = ["check_csf_inline", "check_id_bits", "constants_of", "refuse_geometry"]


@contextmanager
def refuse_geometry(payload: Payload) -> Iterator[None]:
    """Refuse a payload whose sizes the checks inside the context refuse.

    Raises
    ------
    InvalidPayload
        In place of UnsupportedGeometry, for the same reason.
    """
    try:
        yield
    except errors.UnsupportedGeometry as error:
        raise errors.InvalidPayload(payload.family_name, error.reason) from error


def check_id_bits(payload: Payload, id_bits: int) -> None:
    """Refuse a width of routing ids other than 32 and 64.

    Raises
    ------
    InvalidPayload
        It is another one.
    """
    if id_bits not in (32, 64):
        raise errors.InvalidPayload(payload.family_name, f"id_bits = {id_bits} is neither 32 nor 64")


def check_csf_inline(payload: Payload, csf_inline: bool, intermediate: int) -> None:
    """Refuse inline scales where the last row tile is not the short one.

    Raises
    ------
    InvalidPayload
        ``csf_inline`` is set and ``intermediate % 128`` is not 64.
    """
    if csf_inline and not is_compact(intermediate):
        raise errors.InvalidPayload(
            payload.family_name,
            f"csf_inline with intermediate = {intermediate}: scales are read inline only where "
            f"intermediate % 128 == 64, here it is {intermediate % 128}",
        )


def constants_of(payload: Payload) -> tuple[tuple[str, Field], ...]:
    """Return the fields as constants of a kernel's constructor, without flags that are off."""
    return tuple((name, value) for name, value in payload.to_fields().items() if value is not False)
