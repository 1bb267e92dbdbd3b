"""Serving: programs of a frozen plan for compilers' own runtimes, in processes that know nothing of planfreeze."""

from planfreeze.serving.environment import serving_environment
from planfreeze.serving.programs import pin_plan, read_served

__all__ = ["pin_plan", "read_served", "serving_environment"]
