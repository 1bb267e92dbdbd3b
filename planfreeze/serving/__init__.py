"""Serving: programs of a frozen plan for compilers' own runtimes, in processes that know nothing of planfreeze."""

from planfreeze.serving.environment import serving_environment
from planfreeze.serving.programs import Service, open_service, read_served

__all__ = ["Service", "open_service", "read_served", "serving_environment"]
