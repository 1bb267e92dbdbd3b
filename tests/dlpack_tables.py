"""Tables of functions as DLPack lays them out, for libraries that only a test knows."""

import ctypes
from typing import Any


class View(ctypes.Structure):
    """A tensor as DLPack lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


TakeView = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))


class Table(ctypes.Structure):
    """The functions that a library exports to C, as DLPack lays them out."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 3),
        ("take_view", TakeView),
        ("stream", ctypes.c_void_p),
    )


make_capsule = ctypes.pythonapi.PyCapsule_New
make_capsule.restype, make_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
NAME = b"dlpack_exchange_api"


def export(table: Table, name: bytes = NAME) -> Any:
    return make_capsule(ctypes.addressof(table), name, None)
