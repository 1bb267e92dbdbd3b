/* Checks of tensors: all those of a call in one go, with their addresses, for planfreeze.tensor_checks.

   torch hands out what a tensor is as DLPack's views, by functions that it exports to C: the capsule
   torch.Tensor.__dlpack_c_exchange_api__ holds a table of them (dlpack_views.h). Each view is held against what the
   tensor has to be (tensor_rows.h). Nothing else is needed of torch: neither its headers nor its libraries.

   Everything is written in Python's limited API, so that one build serves Python 3.11 and later. It has no version for
   a Python without its global lock, which is what keeps tensors as they are while they are looked at. */

#ifdef Py_GIL_DISABLED
#error "the limited API has no version without the global interpreter lock"
#endif
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#include "tensor_rows.h"

#define WORD_BYTES ((Py_ssize_t)sizeof(uint64_t))

/* --- One call ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Torch torch;
    Py_ssize_t count;
    Row *rows;
} TensorCheck;

typedef struct {
    PyObject *no_view; /* an exception */
} Module;

/* 1 where all addresses were written, 0 where one is not known, -1 with an error set. */
static int take_addresses(const TensorCheck *self, PyObject *values, const char *numbers, char *words)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        const Row *row = &self->rows[i];
        PyObject *value = PyTuple_GetItem(values, row->place); /* which raises behind the last one */
        uint64_t address;
        int64_t elements;
        int is_known;
        if (value == NULL)
            return -1;
        memcpy(&elements, numbers + i * WORD_BYTES, sizeof elements);
        is_known = take_address(&self->torch, row, value, elements, &address);
        if (is_known != 1)
            return is_known;
        memcpy(words + i * WORD_BYTES, &address, sizeof address);
    }
    return 1;
}

PyDoc_STRVAR(take_doc, "take(values, numbers, words, /)\n--\n\n\
Write the words of a call and return True where every tensor is known to be what its row wants.\n\n\
``numbers`` holds the elements that each tensor must have at least, as int64, and behind them words that are taken as\n\
they are. False says nothing but that the tensors have to be looked at one by one.");

static PyObject *take(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    TensorCheck *self = (TensorCheck *)object;
    Py_buffer words;
    Py_ssize_t size, first = self->count * WORD_BYTES;
    char *numbers;
    int known;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "take() takes 3 arguments, not %zd", count);
    if (!PyTuple_Check(arguments[0]))
        return PyErr_Format(PyExc_TypeError, "values are no tuple");
    if (PyBytes_AsStringAndSize(arguments[1], &numbers, &size) < 0)
        return NULL;
    if (PyObject_GetBuffer(arguments[2], &words, PyBUF_WRITABLE) < 0)
        return NULL;
    if (size < first || words.len < size) {
        PyBuffer_Release(&words);
        return PyErr_Format(PyExc_ValueError, "too few numbers, or too little room for words");
    }
    known = take_addresses(self, arguments[0], numbers, words.buf);
    if (known == 1)
        memcpy((char *)words.buf + first, numbers + first, (size_t)(size - first));
    PyBuffer_Release(&words);
    return known < 0 ? NULL : PyBool_FromLong(known);
}

/* --- What every call is held against ----------------------------------------------------------------------------- */

static int read_rows(TensorCheck *self, PyObject *no_view, PyObject *rows)
{
    Py_ssize_t count = PyTuple_Size(rows);
    self->rows = PyMem_Calloc((size_t)count + 1, sizeof(Row));
    if (self->rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_row(&self->torch, no_view, PyTuple_GetItem(rows, i), &self->rows[i]) < 0)
            return -1;
    return 0;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *capsule, *classes, *rows;
    const Module *module = PyType_GetModuleState(type);
    TakeView take_view;
    TensorCheck *self;
    if (module == NULL)
        return NULL;
    if (named != NULL && PyDict_Size(named) > 0)
        return PyErr_Format(PyExc_TypeError, "TensorCheck() takes no named arguments");
    if (!PyArg_ParseTuple(arguments, "OO!O!", &capsule, &PyTuple_Type, &classes, &PyTuple_Type, &rows))
        return NULL;
    take_view = find_function(capsule);
    if (take_view == NULL)
        return NULL;
    self = (TensorCheck *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_INCREF(classes);
    self->torch.classes = classes;
    self->torch.dtype_name = PyUnicode_InternFromString("dtype");
    self->torch.take_view = take_view; /* the table lives as long as the process, says DLPack */
    self->torch.offset_name = PyUnicode_InternFromString("storage_offset");
    if (self->torch.dtype_name == NULL || self->torch.offset_name == NULL ||
        read_rows(self, module->no_view, rows) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Not known to the collector of cycles: what it holds, classes and dtypes, holds no check. */
static void discard(PyObject *object)
{
    TensorCheck *self = (TensorCheck *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_XDECREF(self->rows[i].torch_dtype);
    PyMem_Free(self->rows);
    Py_XDECREF(self->torch.dtype_name);
    Py_XDECREF(self->torch.offset_name);
    Py_XDECREF(self->torch.classes);
    PyObject_Free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(check_doc, "TensorCheck(exchange, classes, rows, /)\n--\n\n\
What the tensors of a program's calls have to be.\n\n\
``exchange`` is the capsule of DLPack's table, ``classes`` the types whose tensors are nothing but what torch says of\n\
them; a row is the place of a tensor among the values of a call, a tensor of the type and on the device wanted, an\n\
alignment in bytes, and whether it must be contiguous.\n\n\
Raises NoView where a row is like no plain tensor or one that torch has no view of, ValueError where the table or a\n\
row is not what it has to be.");

static PyMethodDef methods[] = {
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, take_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)check_doc},
    {Py_tp_new, make},
    {Py_tp_dealloc, discard},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "planfreeze._tensors.TensorCheck",
    .basicsize = sizeof(TensorCheck),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

PyDoc_STRVAR(no_view_doc, "torch hands out no view of a tensor that a row is like, or it is no plain tensor.");

static int fill_module(PyObject *object)
{
    Module *module = PyModule_GetState(object);
    PyObject *type;
    int status;
    module->no_view = PyErr_NewExceptionWithDoc("planfreeze._tensors.NoView", no_view_doc, NULL, NULL);
    if (module->no_view == NULL || PyModule_AddObjectRef(object, "NoView", module->no_view) < 0)
        return -1;
    type = PyType_FromModuleAndSpec(object, &spec, NULL);
    status = type == NULL ? -1 : PyModule_AddType(object, (PyTypeObject *)type);
    Py_XDECREF(type);
    return status;
}

static int visit_module(PyObject *object, visitproc visit, void *arg)
{
    Module *module = PyModule_GetState(object);
    Py_VISIT(module->no_view);
    return 0;
}

static int clear_module(PyObject *object)
{
    Module *module = PyModule_GetState(object);
    Py_CLEAR(module->no_view);
    return 0;
}

static void discard_module(void *object)
{
    clear_module(object);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "planfreeze._tensors",
    .m_doc = "Checks of tensors, all those of a call in one go.",
    .m_size = sizeof(Module),
    .m_slots = module_slots,
    .m_traverse = visit_module,
    .m_clear = clear_module,
    .m_free = discard_module,
};

PyMODINIT_FUNC PyInit__tensors(void)
{
    return PyModuleDef_Init(&module);
}
