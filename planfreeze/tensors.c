/* Checks of tensors: all those of a call in one go, with their addresses, for planfreeze.tensor_checks.

   torch hands out what a tensor is as DLPack's views, by functions that it exports to C: the capsule
   torch.Tensor.__dlpack_c_exchange_api__ holds a table of them. The structs below are as the DLPack specification
   lays them out from version 1.2 on (https://dmlc.github.io/dlpack/latest/c_api.html); of the table, only what stands
   before the function that is called. Nothing else is needed of torch: neither its headers nor its libraries.

   Everything is written in Python's limited API, so that one file serves Python 3.11 and later. It has no version for
   a Python without its global lock, which is what keeps tensors as they are while they are looked at. */

#ifdef Py_GIL_DISABLED
#error "the limited API has no version without the global interpreter lock"
#endif
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define CAPSULE_NAME "dlpack_exchange_api"
#define MAJOR_VERSION 1
#define SIGNED 0 /* codes of element types */
#define UNSIGNED 1
#define WORD_BYTES ((Py_ssize_t)sizeof(uint64_t))

/* --- DLPack ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int32_t kind;
    int32_t ordinal;
} Device;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} ElementType;

typedef struct {
    void *data;
    Device device;
    int32_t dimensions;
    ElementType dtype;
    int64_t *sizes;
    int64_t *strides; /* in elements */
    uint64_t byte_offset;
} View;

/* Fills in a view of a tensor that stays the tensor's; -1 with a Python error set where there is none. */
typedef int (*TakeView)(void *tensor, View *view);

typedef struct TableHead {
    uint32_t major;
    uint32_t minor;
    struct TableHead *older; /* a table of an earlier version, or NULL */
} TableHead;

typedef struct {
    TableHead head;
    void (*allocate)(void);
    void (*give)(void);
    void (*receive)(void);
    TakeView take_view; /* may be NULL */
} Table;

/* --- One call ---------------------------------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t place; /* among the values of a call */
    Device device;
    ElementType dtype;
    PyObject *torch_dtype; /* NULL where dtype says it all */
    uint64_t alignment;    /* in bytes */
    int is_contiguous;     /* whether it has to be */
} Row;

typedef struct {
    PyObject_HEAD
    PyObject *classes; /* a tuple */
    PyObject *dtype_name;
    TakeView take_view;
    Py_ssize_t count;
    Row *rows;
} TensorCheck;

static int has_class(PyObject *value, PyObject *classes)
{
    Py_ssize_t count = PyTuple_Size(classes);
    for (Py_ssize_t i = 0; i < count; i++)
        if ((PyObject *)Py_TYPE(value) == PyTuple_GetItem(classes, i))
            return 1;
    return 0;
}

/* The elements of a tensor that is contiguous, or else those from the first to the last one; -1 where it is not
   contiguous and has to be, or where this cannot be told. */
static int64_t count_elements(const View *view, int is_contiguous)
{
    int64_t count = 1, span = 1, step;
    if (view->dimensions > 0 && (view->sizes == NULL || view->strides == NULL))
        return -1;
    for (int32_t i = view->dimensions - 1; i >= 0; i--) {
        int64_t size = view->sizes[i];
        if (size == 1)
            continue;
        if (size <= 0)
            return size == 0 ? 0 : -1;
        if (is_contiguous && view->strides[i] != count)
            count = INT64_MIN; /* unless it is empty, which a later size tells */
        if (count > 0 && __builtin_mul_overflow(count, size, &count))
            return -1;
        if (__builtin_mul_overflow(size - 1, view->strides[i], &step) || __builtin_add_overflow(span, step, &span))
            return -1;
    }
    return !is_contiguous ? span : count > 0 ? count : -1;
}

static int is_aligned(uint64_t address, uint64_t alignment)
{
    uint64_t low_bits = alignment - 1;
    return (alignment & low_bits) == 0 ? (address & low_bits) == 0 : address % alignment == 0;
}

/* 1 where torch says that a tensor has the dtype that a row wants, 0 where it has another, -1 with an error set. */
static int has_dtype(const TensorCheck *self, const Row *row, PyObject *value)
{
    PyObject *found = PyObject_GetAttr(value, self->dtype_name);
    Py_XDECREF(found); /* its address is all that is asked for */
    return found == NULL ? -1 : found == row->torch_dtype;
}

/* 1 and the address of a tensor that is what a row wants, 0 where that is not known, -1 with an error set. */
static int take_address(const TensorCheck *self, const Row *row, PyObject *value, int64_t elements, uint64_t *address)
{
    View view;
    int64_t found;
    int is_known = has_class(value, self->classes);
    if (is_known && row->torch_dtype != NULL)
        is_known = has_dtype(self, row, value);
    if (is_known != 1)
        return is_known;
    if (self->take_view(value, &view) != 0) {
        PyErr_Clear(); /* that torch has no view of it is no verdict either */
        return 0;
    }
    if (view.device.kind != row->device.kind || view.device.ordinal != row->device.ordinal)
        return 0;
    if (view.dtype.code != row->dtype.code || view.dtype.bits != row->dtype.bits || view.dtype.lanes != row->dtype.lanes)
        return 0;
    found = count_elements(&view, row->is_contiguous);
    *address = (uint64_t)(uintptr_t)view.data + view.byte_offset;
    return found >= 0 && found >= elements && is_aligned(*address, row->alignment);
}

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
        is_known = take_address(self, row, value, elements, &address);
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

static TakeView find_function(PyObject *capsule)
{
    const TableHead *head = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
    TakeView found;
    if (head == NULL)
        return NULL;
    while (head->major != MAJOR_VERSION && head->older != NULL)
        head = head->older;
    if (head->major != MAJOR_VERSION) {
        PyErr_Format(PyExc_ValueError, "its version of DLPack is %u, not %d", (unsigned)head->major, MAJOR_VERSION);
        return NULL;
    }
    found = ((const Table *)head)->take_view;
    if (found == NULL)
        PyErr_SetString(PyExc_ValueError, "it gives no views of tensors");
    return found;
}

static int read_row(const TensorCheck *self, PyObject *given, Row *row)
{
    PyObject *like;
    unsigned long long alignment;
    View view;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a row is no tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(given, "nOKp", &row->place, &like, &alignment, &row->is_contiguous))
        return -1;
    if (row->place < 0 || alignment == 0) {
        PyErr_SetString(PyExc_ValueError, "a row has a negative place, or an alignment of 0");
        return -1;
    }
    if (!has_class(like, self->classes)) {
        PyErr_SetString(PyExc_TypeError, "a row is like something that is no plain tensor");
        return -1;
    }
    if (self->take_view(like, &view) != 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "a row is like a tensor that has no view");
        return -1;
    }
    row->device = view.device;
    row->dtype = view.dtype;
    row->alignment = alignment;
    /* torch (2.13) gives its integers of 1 to 7 bits out as ones of 8. */
    if (view.dtype.bits == 8 && (view.dtype.code == SIGNED || view.dtype.code == UNSIGNED)) {
        row->torch_dtype = PyObject_GetAttr(like, self->dtype_name);
        if (row->torch_dtype == NULL)
            return -1;
    }
    return 0;
}

static int read_rows(TensorCheck *self, PyObject *rows)
{
    Py_ssize_t count = PyTuple_Size(rows);
    self->rows = PyMem_Calloc((size_t)count + 1, sizeof(Row));
    if (self->rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_row(self, PyTuple_GetItem(rows, i), &self->rows[i]) < 0)
            return -1;
    return 0;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *named)
{
    PyObject *capsule, *classes, *rows;
    TakeView take_view;
    TensorCheck *self;
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
    self->classes = classes;
    self->dtype_name = PyUnicode_InternFromString("dtype");
    self->take_view = take_view; /* the table lives as long as the process, says DLPack */
    if (self->dtype_name == NULL || read_rows(self, rows) < 0) {
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
    Py_XDECREF(self->dtype_name);
    Py_XDECREF(self->classes);
    PyObject_Free(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(check_doc, "TensorCheck(exchange, classes, rows, /)\n--\n\n\
What the tensors of a program's calls have to be.\n\n\
``exchange`` is the capsule of DLPack's table, ``classes`` the types whose tensors are nothing but what torch says of\n\
them; a row is the place of a tensor among the values of a call, a tensor of the type and on the device wanted, an\n\
alignment in bytes, and whether it must be contiguous.");

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

static int fill_module(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int status = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return status;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, fill_module},
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "planfreeze._tensors",
    .m_doc = "Checks of tensors, all those of a call in one go.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__tensors(void)
{
    return PyModuleDef_Init(&module);
}
