# SPDX-License-Identifier: Apache-2.0
# invonnx_flags: how our own code is compiled. INVONNX_KERNEL_OPTIONS: what ops/ gets on top; INVONNX_EMULATED_OPTIONS:
# what device code for the host gets.

add_library(invonnx_flags INTERFACE)

# No contraction: a value computed twice, in forward and again in backward, must have the same bits.
target_compile_definitions(invonnx_flags INTERFACE _XOPEN_SOURCE=700)
target_compile_options(invonnx_flags INTERFACE -ffp-contract=off -Wall -Wextra -Wshadow -Wconversion
    $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti -fno-threadsafe-statics>)
# The folder that it was built in is in nothing but debug information, where debuggers look for the sources: equal bytes
# wherever it is built.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
if(NOT build_type STREQUAL "DEBUG")
    add_compile_options(-ffile-prefix-map=${CMAKE_BINARY_DIR}=build -ffile-prefix-map=${CMAKE_SOURCE_DIR}=.)
endif()
# A loop that clang does not vectorise though it is asked to is slower, no more.
target_compile_options(invonnx_flags INTERFACE $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>)
if(INVONNX_WERROR)
    target_compile_options(invonnx_flags INTERFACE -Werror)
endif()

# clang without libomp: the loops run on one thread, with the same result. Some names are read by pragmas only.
find_package(OpenMP COMPONENTS C QUIET)
if(NOT OpenMP_C_FOUND)
    target_compile_options(invonnx_flags INTERFACE -Wno-unknown-pragmas -Wno-unused-variable -Wno-unused-parameter)
endif()

if(INVONNX_SANITIZE)
    add_compile_options(-fsanitize=${INVONNX_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${INVONNX_SANITIZE})
    set(INVONNX_KERNEL_OPTIONS -O1)
    set(INVONNX_EMULATED_OPTIONS -O0) # takes long to compile, and few of these tests run it
else()
    # Not -ffast-math: NaN and infinity must go through kernels as they are.
    set(INVONNX_KERNEL_OPTIONS -O3 -fno-math-errno -fno-trapping-math)
    # Nobody waits for it but tests; Debian's compiler for arm64 fails where it should vectorise it.
    set(INVONNX_EMULATED_OPTIONS -O2 -fno-tree-vectorize -fno-math-errno -fno-trapping-math)
endif()
if(INVONNX_NATIVE)
    list(APPEND INVONNX_KERNEL_OPTIONS -march=native)
endif()
if(INVONNX_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
endif()
