/* SPDX-License-Identifier: Apache-2.0
 * Status codes of the library. INV_STATUS_MAP is expanded into the enum, the names and the texts. A code keeps its
 * value in later versions. */
#ifndef INVONNX_STATUS_H
#define INVONNX_STATUS_H

/* Name without the prefix INV_, value, and the text of inv_status_text. */
#define INV_STATUS_MAP(X)                                          \
    X(OK, 0, "done")                                               \
    X(E_ARG, 1, "wrong argument")                                  \
    X(E_NOMEM, 2, "out of memory")                                 \
    X(E_IO, 3, "file cannot be read or written")                   \
    X(E_PARSE, 4, "malformed file")                                \
    X(E_UNSUPPORTED_OP, 5, "operator, gradient or kernel missing") \
    X(E_UNSUPPORTED_TYPE, 6, "element type not supported here")    \
    X(E_SHAPE, 7, "shapes do not fit")                             \
    X(E_GRAPH, 8, "graph is not valid")                            \
    X(E_NOT_INVERTIBLE, 9, "no inverse")                           \
    X(E_NUMERIC, 10, "numbers out of bounds")                      \
    X(E_DEVICE, 11, "device failed")                               \
    X(E_ABI, 12, "plugin does not fit this library")               \
    X(E_EXISTS, 13, "name already in use")                         \
    X(E_INTERNAL, 14, "defect in the library")                     \
    X(E_NOT_CONSTANT, 15, "a value must be known before the run")  \
    X(E_STOPPED, 16, "stopped by the caller")                      \
    X(E_RANKS, 17, "another process of the run failed")

/** The result of a call: INV_OK (0) or the kind of failure. The context has the message (inv_context_message). */
typedef enum inv_status {
#define INV_STATUS_ENUM(name, value, text) INV_##name = value,
    INV_STATUS_MAP(INV_STATUS_ENUM)
#undef INV_STATUS_ENUM
} inv_status;

#endif
