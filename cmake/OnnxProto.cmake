# SPDX-License-Identifier: Apache-2.0
# onnx_proto: the ONNX schema in C, generated from the onnx.proto of an installed package.
# With INVONNX_ONNX_GENERATED, a folder that has onnx.pb-c.c and onnx.pb-c.h already, neither it nor protoc-c is needed.

# Sets `out` to the onnx.proto inside the onnx package of the first Python that has one, or to "".
function(invonnx_find_python_proto out)
    set(${out} "" PARENT_SCOPE)
    foreach(python IN ITEMS ${CMAKE_SOURCE_DIR}/.venv/bin/python3 python3 /usr/bin/python3)
        execute_process(
            COMMAND ${python} -c "import importlib.util as u, os
s = u.find_spec('onnx')
print(os.path.join(os.path.dirname(s.origin), 'onnx.proto') if s and s.origin else '')"
            OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
        if(NOT failed AND path AND EXISTS "${path}")
            set(${out} "${path}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
endfunction()

# A target that is the schema `proto` in C, made in folder `dir`; proto "": onnx.pb-c.[ch] are in it already.
function(invonnx_onnx_proto target dir proto)
    file(MAKE_DIRECTORY ${dir})
    if(proto)
        configure_file(${proto} ${dir}/onnx.proto COPYONLY)
        add_custom_command(
            OUTPUT ${dir}/onnx.pb-c.c ${dir}/onnx.pb-c.h
            COMMAND ${PROTOC_C} --proto_path=${dir} --c_out=${dir} onnx.proto
            DEPENDS ${dir}/onnx.proto
            COMMENT "Generating onnx.pb-c from ${proto}"
            VERBATIM)
    endif()
    add_library(${target} OBJECT ${dir}/onnx.pb-c.c ${dir}/onnx.pb-c.h)
    target_include_directories(${target} SYSTEM PUBLIC ${dir}
        $<TARGET_PROPERTY:PkgConfig::PROTOBUF_C,INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_options(${target} PRIVATE -w)
endfunction()

set(onnx_proto_dir ${CMAKE_BINARY_DIR}/generated)
set(onnx_proto_file "")
if(INVONNX_ONNX_GENERATED)
    configure_file(${INVONNX_ONNX_GENERATED}/onnx.pb-c.c ${onnx_proto_dir}/onnx.pb-c.c COPYONLY)
    configure_file(${INVONNX_ONNX_GENERATED}/onnx.pb-c.h ${onnx_proto_dir}/onnx.pb-c.h COPYONLY)
else()
    find_program(PROTOC_C protoc-c REQUIRED)
    set(onnx_proto_file "${INVONNX_ONNX_PROTO}")
    if(NOT onnx_proto_file)
        invonnx_find_python_proto(onnx_proto_file)
    endif()
    if(NOT onnx_proto_file AND EXISTS /usr/include/onnx/onnx.proto)
        set(onnx_proto_file /usr/include/onnx/onnx.proto)
    endif()
    if(NOT onnx_proto_file OR NOT EXISTS "${onnx_proto_file}")
        message(FATAL_ERROR "onnx.proto not found. Install Debian's libonnx-dev or PyPI's onnx, or give "
                            "-DINVONNX_ONNX_PROTO=/path/to/onnx.proto")
    endif()
    message(STATUS "ONNX schema: ${onnx_proto_file}")
endif()
invonnx_onnx_proto(onnx_proto ${onnx_proto_dir} "${onnx_proto_file}")
