/* Rows: what one tensor of a call has to be, and whether it is. Part of tensors.c. */

#ifndef PLANFREEZE_TENSOR_ROWS_H
#define PLANFREEZE_TENSOR_ROWS_H

#include "dlpack_views.h"

#define LONGEST_STORAGE ((uint64_t)1 << 46) /* in bytes: 64 TiB, more than any machine has */

/* What is asked of torch. */
typedef struct {
    PyObject *classes; /* a tuple: types whose tensors are nothing but what torch says of them */
    PyObject *dtype_name;
    PyObject *offset_name; /* of what says how many elements into its storage a tensor begins */
    TakeView take_view;
} Torch;

typedef struct {
    Py_ssize_t place; /* among the values of a call */
    Device device;
    ElementType dtype;
    PyObject *torch_dtype; /* NULL where dtype says it all */
    uint64_t alignment;    /* in bytes */
    int is_contiguous;     /* whether it has to be */
} Row;

static int has_class(const Torch *torch, PyObject *value)
{
    Py_ssize_t count = PyTuple_Size(torch->classes);
    for (Py_ssize_t i = 0; i < count; i++)
        if ((PyObject *)Py_TYPE(value) == PyTuple_GetItem(torch->classes, i))
            return 1;
    return 0;
}

static int is_aligned(uint64_t address, uint64_t alignment)
{
    uint64_t low_bits = alignment - 1;
    return (alignment & low_bits) == 0 ? (address & low_bits) == 0 : address % alignment == 0;
}

/* 1 where torch says that a tensor has the dtype that a row wants, 0 where it has another, -1 with an error set. */
static int has_dtype(const Torch *torch, const Row *row, PyObject *value)
{
    PyObject *found = PyObject_GetAttr(value, torch->dtype_name);
    Py_XDECREF(found); /* its address is all that is asked for */
    return found == NULL ? -1 : found == row->torch_dtype;
}

/* 1 where there is memory behind a tensor that has elements, 0 where there is none, -1 with an error set.

   A storage that was resized to nothing is at 0, and its tensors are where they begin in it. torch is asked for that
   only where an address is as low: most are not. */
static int has_memory(const Torch *torch, PyObject *value, const View *view)
{
    uint64_t address = address_of(view);
    PyObject *offset;
    int64_t elements;
    if (address == 0 || address >= LONGEST_STORAGE)
        return address != 0;
    offset = PyObject_CallMethodObjArgs(value, torch->offset_name, NULL);
    if (offset == NULL)
        return -1;
    elements = PyLong_AsLongLong(offset);
    Py_DECREF(offset);
    if (elements == -1 && PyErr_Occurred() != NULL)
        return -1;
    return address != (uint64_t)elements * (uint64_t)size_bytes_of(&view->dtype);
}

/* 1 and the address of a tensor that is what a row wants, 0 where that is not known, -1 with an error set. */
static int take_address(const Torch *torch, const Row *row, PyObject *value, int64_t elements, uint64_t *address)
{
    View view;
    int64_t found;
    int is_known = has_class(torch, value);
    if (is_known && row->torch_dtype != NULL)
        is_known = has_dtype(torch, row, value);
    if (is_known != 1)
        return is_known;
    if (torch->take_view(value, &view) != 0) {
        PyErr_Clear(); /* that torch has no view of it is no verdict either */
        return 0;
    }
    if (!is_same_device(&view.device, &row->device) || !is_same_type(&view.dtype, &row->dtype))
        return 0;
    found = count_elements(&view, row->is_contiguous);
    *address = address_of(&view);
    if (found < 0 || found < elements || !is_aligned(*address, row->alignment))
        return 0;
    return found == 0 ? 1 : has_memory(torch, value, &view);
}

/* Sets the error that torch has no view of a tensor, with the reason that torch gave. */
static void raise_no_view(PyObject *no_view)
{
    PyObject *type, *reason, *trace;
    if (PyErr_Occurred() != NULL && PyErr_ExceptionMatches(PyExc_MemoryError))
        return; /* which says nothing of the tensor */
    PyErr_Fetch(&type, &reason, &trace);
    PyErr_Format(no_view, "torch has no view of what a row is like: %S", reason == NULL ? Py_None : reason);
    Py_XDECREF(type);
    Py_XDECREF(reason);
    Py_XDECREF(trace);
}

/* Fills in a row from a tensor of the type and on the device wanted; -1 with an error set. */
static int read_like(const Torch *torch, PyObject *no_view, PyObject *like, Row *row)
{
    View view;
    if (!has_class(torch, like)) {
        PyErr_SetString(no_view, "a row is like something that is no plain tensor");
        return -1;
    }
    if (torch->take_view(like, &view) != 0) {
        raise_no_view(no_view);
        return -1;
    }
    row->device = view.device;
    row->dtype = view.dtype;
    /* torch (2.13) gives its integers of 1 to 7 bits out as ones of 8. */
    if (view.dtype.bits == 8 && (view.dtype.code == SIGNED || view.dtype.code == UNSIGNED)) {
        row->torch_dtype = PyObject_GetAttr(like, torch->dtype_name);
        if (row->torch_dtype == NULL)
            return -1;
    }
    return 0;
}

static int read_row(const Torch *torch, PyObject *no_view, PyObject *given, Row *row)
{
    PyObject *like;
    unsigned long long alignment;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a row is no tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "nOKp", &row->place, &like, &alignment, &row->is_contiguous))
        return -1;
    row->alignment = alignment;
    if (row->place < 0 || alignment == 0) {
        PyErr_SetString(PyExc_ValueError, "a row has a negative place, or an alignment of 0");
        return -1;
    }
    return read_like(torch, no_view, like, row);
}

#endif
