"""The doctor: whether frozen serving would work here, from what is installed to what a guard watches."""

from planfreeze.doctor.diagnosis import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Finding", "diagnose"]
