"""Companions of recorded Triton programs: what the build stores beside a cubin, and serving gives to Triton."""

__all__ = ["KEPT", "TRITON_PLACE", "UNBUILT"]

KEPT = "triton.json"
"""Triton's key, what it was made of, and the metadata that Triton keeps beside a cubin."""
UNBUILT = "unbuilt.json"
"""Names and reasons of the C modules that could not be built; those that could are companions by their own names."""
TRITON_PLACE = "$TRITON"
"""Stands for the folder of Triton in metadata."""
