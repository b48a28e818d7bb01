# SPDX-License-Identifier: Apache-2.0
# The CUDA backend. Sets INVONNX_CUDA_INCLUDE, INVONNX_CUDA_LIBRARIES and INVONNX_CUDA_LDFLAGS (for pkg-config), and
# makes invonnx_kernels: ops/*.cu compiled by nvcc. (The same files are compiled for the host as well, see
# CMakeLists.txt.) cuDNN is opened when the program runs; of it only a header is needed, if there is one.
# Without INVONNX_CUDA, for the tests alone, what is not there is named by INVONNX_CUDA_MISSING, and is no error.

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    file(GLOB unpacked ${CMAKE_SOURCE_DIR}/.nvcc/nvidia/cu*/bin)
    find_program(INVONNX_NVCC nvcc HINTS ENV NVCC_DIR ${CUDAToolkit_ROOT}/bin PATHS /usr/local/cuda/bin ${unpacked})
    if(NOT INVONNX_NVCC AND INVONNX_CUDA)
        message(FATAL_ERROR "nvcc not found; set CUDAToolkit_ROOT, or INVONNX_CUDA=OFF to build for the CPU only")
    elseif(NOT INVONNX_NVCC)
        set(INVONNX_CUDA_MISSING "nvcc")
        return()
    endif()
    set(CMAKE_CUDA_COMPILER ${INVONNX_NVCC})
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# Where libraries and headers may lie that are not in the toolkit: wheels beside a Python package.
execute_process(COMMAND python3 -c "import nvidia; print(';'.join(nvidia.__path__))"
    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
    set(wheels "")
endif()
set(places ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib64 ${CUDAToolkit_LIBRARY_ROOT}/lib)
set(include_places ${CUDAToolkit_INCLUDE_DIRS})
foreach(folder IN LISTS wheels ITEMS ${CMAKE_SOURCE_DIR}/.cudalibs/nvidia)
    file(GLOB found ${folder}/*/lib)
    list(APPEND places ${found})
    file(GLOB found ${folder}/*/include)
    list(APPEND include_places ${found})
endforeach()

# Wheels have libcublasLt.so.13 and no libcublasLt.so, which find_library would want.
set(cublaslt ${CUDA_cublasLt_LIBRARY})
foreach(folder IN LISTS places)
    if(NOT cublaslt)
        file(GLOB found ${folder}/libcublasLt.so ${folder}/libcublasLt.so.[0-9]*)
        if(found)
            list(GET found 0 cublaslt)
        endif()
    endif()
endforeach()
if(NOT cublaslt AND INVONNX_CUDA)
    message(FATAL_ERROR "cuBLASLt not found; set CUDAToolkit_ROOT, or INVONNX_CUDA=OFF to build for the CPU only")
endif()
find_path(INVONNX_CUBLASLT_INCLUDE cublasLt.h HINTS ${include_places})
if(NOT cublaslt OR NOT INVONNX_CUBLASLT_INCLUDE)
    set(INVONNX_CUDA_MISSING "cuBLASLt")
endif()
find_path(INVONNX_CUDNN_INCLUDE cudnn.h HINTS ${include_places})
message(STATUS "cuBLASLt: ${cublaslt}")

set(INVONNX_CUDA_INCLUDE ${CUDAToolkit_INCLUDE_DIRS} ${INVONNX_CUBLASLT_INCLUDE})
if(INVONNX_CUDNN_INCLUDE)
    list(APPEND INVONNX_CUDA_INCLUDE ${INVONNX_CUDNN_INCLUDE})
    message(STATUS "cuDNN header: ${INVONNX_CUDNN_INCLUDE}")
endif()
find_library(INVONNX_CUDNN_LIBRARY libcudnn.so.9 HINTS ${places}) # for the tests
list(REMOVE_DUPLICATES INVONNX_CUDA_INCLUDE)
set(INVONNX_CUDA_LIBRARIES ${cublaslt} CUDA::cudart_static)
get_filename_component(cublaslt_folder ${cublaslt} DIRECTORY)
set(INVONNX_CUDA_LDFLAGS
    " ${cublaslt} -Wl,-rpath,${cublaslt_folder} ${CUDA_cudart_static_LIBRARY} -lrt -ldl -lpthread")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
if(INVONNX_CUDA AND INVONNX_CUDNN_LIBRARY) # it is opened by its name
    get_filename_component(cudnn_folder ${INVONNX_CUDNN_LIBRARY} DIRECTORY)
    list(APPEND CMAKE_BUILD_RPATH ${cudnn_folder})
    list(APPEND CMAKE_INSTALL_RPATH ${cudnn_folder})
endif()
if(INVONNX_CUDA)
    target_compile_definitions(invonnx_flags INTERFACE INV_HAVE_CUDA=1)
endif()

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ops/*.cu)
add_library(invonnx_kernels OBJECT ${cuda_sources})
target_include_directories(invonnx_kernels PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
target_compile_definitions(invonnx_kernels PRIVATE INV_HAVE_CUDA=1)
# No contraction, as on the CPU: a value computed twice must have the same bits. Nothing of the C++ runtime is used.
target_compile_options(invonnx_kernels PRIVATE --fmad=false
    "SHELL:-Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics")
if(INVONNX_WERROR)
    target_compile_options(invonnx_kernels PRIVATE "SHELL:-Werror all-warnings")
endif()
