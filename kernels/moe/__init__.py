"""Kernel families of a mixture-of-experts layer with MXFP4 weights and MXFP8 activations."""
