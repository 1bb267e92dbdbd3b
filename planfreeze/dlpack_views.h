/* Views of tensors, as DLPack lays them out from version 1.2 on (https://dmlc.github.io/dlpack/latest/c_api.html): of
   the table that a library exports to C, only what stands before the function that is called. Part of tensors.c. */

#ifndef PLANFREEZE_DLPACK_VIEWS_H
#define PLANFREEZE_DLPACK_VIEWS_H

#include <Python.h>

#include <stdint.h>

#define CAPSULE_NAME "dlpack_exchange_api"
#define MAJOR_VERSION 1
#define SIGNED 0 /* codes of element types */
#define UNSIGNED 1

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

static int is_same_device(const Device *one, const Device *other)
{
    return one->kind == other->kind && one->ordinal == other->ordinal;
}

static int is_same_type(const ElementType *one, const ElementType *other)
{
    return one->code == other->code && one->bits == other->bits && one->lanes == other->lanes;
}

static int64_t size_bytes_of(const ElementType *type)
{
    return ((int64_t)type->bits * type->lanes + 7) / 8;
}

static uint64_t address_of(const View *view)
{
    return (uint64_t)(uintptr_t)view->data + view->byte_offset;
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

#endif
