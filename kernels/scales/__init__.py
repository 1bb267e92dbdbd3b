"""Scales of MXFP4 weights: native planes, inline storage, and the kernels between them.

``geometry``   sizes, offsets and slots of one projection's scales; imports nothing heavy
``native``     logical scales to native planes and back
``inline``     native planes to inline storage and back, verified
``storage``    the value that holds inline storage
``pools``      private memory for what is only needed on the way
``expand``     the family that writes native planes from inline storage on the device
``synthetic``  scales for tests and measurements
"""
