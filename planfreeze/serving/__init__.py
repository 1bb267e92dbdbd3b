"""Serving: programs of a frozen plan for compilers' own runtimes, in processes that know nothing of planfreeze."""

from planfreeze.serving.environment import serving_environment

__all__ = ["serving_environment"]
