"""Descriptions of arguments: wherever tracing differs, they do, and a placeholder is traced like its original."""

import json

SCRIPT = """
import itertools, json
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor, make_ptr
from planfreeze.recorded.cute_arguments import make_argument
from planfreeze.recorded.cute_calls import bind_call, check_call, describe_call
from planfreeze.recorded.values import unwrap

@cute.jit
def take(x):
    cute.printf(str(getattr(x, "element_type", type(x).__name__)) + str(getattr(x, "memspace", "")))

def trace(argument):
    seen = []
    hook = lambda owner, module, name: seen.append(str(module).replace(name, "function"))
    cute.compile(take, argument, trace_finalize_hooks=hook)
    return seen[0]

def describe(argument):
    cute.compile  # the DSL's object of the function is made at its first use
    call = bind_call(unwrap(take), (argument,), {})
    from cutlass.base_dsl.compiler import CompileOptions
    payload = describe_call(call, CompileOptions())
    check_call(call, payload)
    return payload

def tensor(shape=(8, 16), dtype=np.float32, align=None, narrow=False):
    return from_dlpack(array(*shape, dtype=dtype), assumed_align=align, use_32bit_stride=narrow)

def view(array):
    return from_dlpack(array)

def retyped(element):
    made = tensor(dtype=np.uint8)
    made.element_type = element
    return made

def fake(shape=(None, 4), stride=(4, 1), element=cutlass.Float32, space="gmem", align=16):
    shape = tuple(cute.sym_int32() if entry is None else entry for entry in shape)
    space = cute.AddressSpace[space]
    return make_fake_tensor(element, shape, stride, memspace=space, assumed_align=align)

ARGUMENTS = {
    "static": lambda: tensor(),
    "another shape": lambda: tensor((8, 32)),
    "another rank": lambda: tensor((8, 4, 4)),
    "another type": lambda: tensor(dtype=np.float16),
    "signed": lambda: tensor(dtype=np.int8),
    "unsigned": lambda: tensor(dtype=np.uint8),
    "boolean": lambda: tensor(dtype=np.bool_),
    "retyped": lambda: retyped(cutlass.Float8E4M3FN),
    "retyped otherwise": lambda: retyped(cutlass.Float8E5M2),
    "other contiguous mode": lambda: view(np.zeros((16, 8), np.float32).T),
    "aligned": lambda: tensor(align=16),
    "aligned more": lambda: tensor(align=32),
    "dynamic": lambda: tensor().mark_layout_dynamic(),
    "dynamic, narrow strides": lambda: tensor(narrow=True).mark_layout_dynamic(),
    "dynamic, other mode": lambda: view(np.zeros((16, 8), np.float32).T).mark_layout_dynamic(),
    "dynamic and aligned": lambda: tensor(align=16).mark_layout_dynamic(),
    "one dynamic mode": lambda: tensor().mark_compact_shape_dynamic(0, (0, 1)),
    "one divisible mode": lambda: tensor().mark_compact_shape_dynamic(0, (0, 1), 4),
    "other divisible mode": lambda: tensor().mark_compact_shape_dynamic(1, (0, 1), 4),
    "vector": lambda: tensor((16,)),
    "dynamic vector": lambda: tensor((16,)).mark_layout_dynamic(),
    "array": lambda: np.zeros((8, 16), np.float32),
    "fake": fake,
    "fake, wide extent": lambda: fake((cute.sym_int64(), 4)),
    "fake, divisible extent": lambda: fake((cute.sym_int32(divisibility=8), 4)),
    "fake, dynamic stride": lambda: fake(stride=(cute.sym_int64(), 1)),
    "fake, divisible stride": lambda: fake(stride=(cute.sym_int64(divisibility=16), 1)),
    "fake, other space": lambda: fake(space="generic"),
    "fake, four bits": lambda: fake(element=cutlass.Float4E2M1FN, align=1),
    "fake, tf32": lambda: fake(element=cutlass.TFloat32),
    "pointer": lambda: make_ptr(cutlass.Float16, 64, cute.AddressSpace.gmem, assumed_align=16),
    "pointer, another type": lambda: make_ptr(cutlass.Int16, 64, cute.AddressSpace.gmem, assumed_align=16),
    "pointer, less aligned": lambda: make_ptr(cutlass.Float16, 64, cute.AddressSpace.gmem, assumed_align=8),
    "pointer, other space": lambda: make_ptr(cutlass.Float16, 64, assumed_align=16),
    "stream": make_fake_stream,
    "int": lambda: 3,
    "float": lambda: 3.0,
    "bool": lambda: True,
    "Int64": lambda: cutlass.Int64(3),
    "Float16": lambda: cutlass.Float16(3),
    "none": lambda: None,
    "a class": lambda: cutlass.Float16,
    "tuple": lambda: (1, 2.0),
    "longer tuple": lambda: (1, 2.0, 3),
    "list of tensors": lambda: [tensor(), tensor((8, 32))],
}
made, traced = {}, {}
for name, argument in ARGUMENTS.items():
    traced[name] = trace(argument())
    made[name] = describe(argument())
    # Again from what a file would hold.
    again = type(made[name]).from_fields(made[name].to_fields())
    placeholder = make_argument(again.arguments[0][1])
    assert trace(placeholder) == traced[name], name
    assert describe(placeholder).digest == made[name].digest, name
confused = [
    (a, b)
    for a, b in itertools.combinations(ARGUMENTS, 2)
    if (traced[a] != traced[b]) and made[a].digest == made[b].digest
]
distinct = len({payload.digest for payload in made.values()})
print(json.dumps({"confused": confused, "distinct": distinct, "traced": len(set(traced.values()))}))

# What a call is described by never depends on the run: addresses, streams, values of scalars.
same = [
    [tensor(align=16) for _ in range(3)],
    [make_fake_stream(), cuda.CUstream(0), cuda.CUstream(4096)],
    [1, 2, 2**31 - 1],
    [make_ptr(cutlass.Int8, address) for address in (0, 1, 4096)],
    [from_dlpack(np.zeros((rows, 4), np.float32)).mark_layout_dynamic() for rows in (2, 3, 1024)],
]
for group in same:
    assert len({describe(argument).digest for argument in group}) == 1, group
"""


# Arrays that are aligned as memory of a device is.
ARRAYS = """
import numpy as np
def array(*shape, dtype=np.float32):
    raw = np.zeros(int(np.prod(shape)) + 64, dtype)
    start = -raw.ctypes.data % 64 // raw.itemsize
    return raw[start : start + int(np.prod(shape))].reshape(shape)
"""


def test_descriptions_differ_wherever_tracing_does_and_placeholders_are_traced_like_their_originals(workshop):
    found = json.loads(workshop.run(workshop.write("script.py", ARRAYS, SCRIPT)))
    assert found["confused"] == []
    assert found["distinct"] >= found["traced"] >= 40
