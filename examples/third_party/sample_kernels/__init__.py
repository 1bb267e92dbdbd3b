"""Kernels that know nothing of planfreeze, and families that declare them."""
