"""Build what is written in C: for the stable ABI of Python 3.11, so that one wheel serves every later version."""

import sysconfig

from setuptools import Extension, setup

# Where it cannot be built, the installation goes on without it and checks each tensor in Python.
tensors = Extension(
    "planfreeze._tensors",
    ["planfreeze/tensors.c"],
    depends=["planfreeze/dlpack_views.h", "planfreeze/tensor_rows.h"],
    extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-g0"],
    py_limited_api=True,
    optional=True,
)
# A Python without the global interpreter lock has no stable ABI up to 3.14.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup()
else:
    setup(ext_modules=[tensors], options={"bdist_wheel": {"py_limited_api": "cp311"}})
