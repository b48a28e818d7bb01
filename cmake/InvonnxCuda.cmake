# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: C++17 in .cu files only, contraction off so that it stays comparable with the CPU.

file(GLOB cuda_sources CONFIGURE_DEPENDS ops/*.cu executor/*.cu executor/cuda/*.cu)
if(NOT cuda_sources)
    message(WARNING "INVONNX_CUDA: this version has no CUDA sources; building for the CPU only")
    return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 17)
target_sources(invonnx_objects PRIVATE ${cuda_sources})
target_compile_definitions(invonnx_objects PUBLIC INV_HAVE_CUDA=1)
target_link_libraries(invonnx_objects PUBLIC CUDA::cudart CUDA::cublas CUDA::cublasLt)
target_compile_options(invonnx_objects PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
