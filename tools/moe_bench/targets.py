"""What the layer must reach, each target with what was measured. The figures of rounds with rests decide."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

Figures = dict[str, Any]
OURS = "inline"
"""The arm that stands against others: what compressed weights are served by."""
PEERS = ("marlin", "triton_kernels")
FLOOR_LIMITS = {8: (1.5, 1.25), 64: (1.2, 1.12), 128: (1.2, 1.12), 512: (1.5, 1.25)}
"""By tokens: times the floor that must be reached, and what lies beyond."""
INLINE_TOKENS = 1536
EXPAND_TOKENS, EXPAND_LIMIT = (8, 64, 128), 0.93
PEER_LIMITS = {1: 1.5, 8: 1.6, 64: 1.6, 128: 1.6, 512: 1.6}
TOKENS = (1, 8, 64, 128, 512, 1024, 1536, 2048, 4096)


class Target(Struct, frozen=True, kw_only=True):
    """One target.

    Parameters
    ----------
    what : str
        In words.
    limit : float
        Bound of the value.
    is_least : bool
        Whether the value has to be at least the limit, not at most.
    value : float, optional
        What was measured; None where it was not.
    beyond : float, optional
        A further bound.
    """

    what: str
    limit: float
    is_least: bool = False
    value: float | None = None
    beyond: float | None = None

    @property
    def state(self) -> str:
        """``met``, ``beyond``, ``missed`` or ``not measured``."""
        if self.value is None:
            return "not measured"
        if self.beyond is not None and self.holds(self.beyond):
            return "beyond"
        return "met" if self.holds(self.limit) else "missed"

    def holds(self, bound: float) -> bool:
        """Tell whether the value keeps a bound."""
        assert self.value is not None
        return self.value >= bound if self.is_least else self.value <= bound


def list_targets(figures: Figures) -> tuple[Target, ...]:
    """Return every target with its value over synthetic scales."""
    layer = figures["layers"].get("synthetic", {})
    limit = figures.get("inline_limit", 0)
    return (*floor_targets(layer), *arm_targets(layer), *peer_targets(layer), *limit_targets(layer, limit))


def floor_targets(layer: Figures) -> Iterator[Target]:
    """Yield the layer against its floor."""
    for arm in ("native", OURS):
        for tokens, (limit, beyond) in FLOOR_LIMITS.items():
            floor = layer.get(str(tokens), {}).get("arms", {}).get(arm, {}).get("floor_us")
            yield Target(
                what=f"{arm} over its floor, {tokens} tokens",
                limit=limit,
                beyond=beyond,
                value=divide(median(layer, tokens, arm), floor),
            )


def arm_targets(layer: Figures) -> Iterator[Target]:
    """Yield inline against the other arms."""
    for tokens in (count for count in TOKENS if count <= INLINE_TOKENS):
        yield Target(what=f"inline over native, {tokens} tokens", limit=1.0, value=ratio(layer, tokens, OURS, "native"))
    for tokens in EXPAND_TOKENS:
        value = ratio(layer, tokens, OURS, "expand")
        yield Target(what=f"inline over per-call expansion, {tokens} tokens", limit=EXPAND_LIMIT, value=value)


def peer_targets(layer: Figures) -> Iterator[Target]:
    """Yield what people serve with against inline."""
    for peer in PEERS:
        for tokens in TOKENS:
            yield Target(
                what=f"{peer} over {OURS}, {tokens} tokens",
                limit=PEER_LIMITS.get(tokens, 1.0),
                is_least=True,
                value=ratio(layer, tokens, peer, OURS),
            )


def limit_targets(layer: Figures, planned: int) -> Iterator[Target]:
    """Yield what decides the inline limit: as long as reading scales inline takes less than their expansion.

    Up to the limit that the run was planned with, the inline arm reads them so.
    """
    for tokens in (count for count in TOKENS if count >= INLINE_TOKENS):
        arm = OURS if tokens <= planned else "inline_always"
        yield Target(
            what=f"inline limit: inline without limit over per-call expansion, {tokens} tokens",
            limit=1.0,
            value=ratio(layer, tokens, arm, "expand"),
        )


def ratio(layer: Figures, tokens: int, over: str, under: str) -> float | None:
    """Return the ratio of two medians of one run."""
    return divide(median(layer, tokens, over), median(layer, tokens, under))


def median(layer: Figures, tokens: int, arm: str) -> float | None:
    """Return the median with rests, in microseconds."""
    found: float | None = layer.get(str(tokens), {}).get("arms", {}).get(arm, {}).get("cool", {}).get("median")
    return found


def divide(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under
