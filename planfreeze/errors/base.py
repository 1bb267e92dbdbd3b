"""The base of all errors."""

__all__ = ["PlanfreezeError"]


class PlanfreezeError(Exception):
    """Base of every error planfreeze raises on purpose; ``exit_code`` is the command line's status."""

    exit_code = 1
