# SPDX-License-Identifier: Apache-2.0
# A CUDA build beside this one: cuda_program links what nvcc makes of the kernels; standin_program and standin_device are
# the same objects, with the kernels that are compiled for the host and the stand-in for the runtime (standin/standin.h).

if(NOT INVONNX_STANDIN OR INVONNX_CUDA)
    return()
endif()
if(INVONNX_CUDA_MISSING OR NOT TARGET invonnx_program)
    add_test(NAME standin.all COMMAND sh -c "echo 'skipped: there is no ${INVONNX_CUDA_MISSING} here'; exit 77")
    set_tests_properties(standin.all PROPERTIES LABELS standin SKIP_RETURN_CODE 77)
    return()
endif()

# A program's objects, linked as in a CUDA build.
function(invonnx_as_cuda target from)
    add_executable(${target} ${ARGN} $<TARGET_OBJECTS:${from}> $<TARGET_OBJECTS:invonnx_cuda_objects>)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_link_libraries(${target} PRIVATE $<TARGET_PROPERTY:${from},LINK_LIBRARIES>)
endfunction()

invonnx_as_cuda(cuda_program invonnx_program $<TARGET_OBJECTS:invonnx_kernels>)
target_link_libraries(cuda_program PRIVATE ${INVONNX_CUDA_LIBRARIES})

# Every launcher of nvcc's code, as another name of the host's.
set(launchers ${CMAKE_CURRENT_BINARY_DIR}/launchers.ld)
add_custom_command(OUTPUT ${launchers} DEPENDS invonnx VERBATIM
    COMMAND sh -c "${CMAKE_NM} -g --defined-only $1 | sed -n 's/.* T inv_sim_\\(.*\\)/inv_cuda_\\1 = inv_sim_\\1;/p' >$2" sh
        $<TARGET_FILE:invonnx> ${launchers})
add_custom_target(standin_launchers DEPENDS ${launchers})

file(GLOB standin_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/standin/*.c)
add_library(standin OBJECT ${standin_sources})
target_include_directories(standin PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_include_directories(standin SYSTEM PRIVATE ${INVONNX_CUDA_INCLUDE})
target_compile_options(standin PRIVATE -O2) # it has the loops of products and convolutions
target_link_libraries(standin PRIVATE invonnx_flags)
target_compile_definitions(standin PRIVATE STANDIN_CUBLASLT="${INVONNX_CUBLASLT_LIBRARY}")
if(INVONNX_CUDNN_LIBRARY)
    target_compile_definitions(standin PRIVATE STANDIN_CUDNN="${INVONNX_CUDNN_LIBRARY}")
endif()

function(invonnx_on_standin target from)
    invonnx_as_cuda(${target} ${from} $<TARGET_OBJECTS:standin>)
    add_dependencies(${target} standin_launchers)
    target_link_libraries(${target} PRIVATE ${INVONNX_CUBLASLT_LIBRARY}) # of which the stand-in reads descriptors
    target_link_options(${target} PRIVATE ${launchers} LINKER:--wrap=dlopen,--wrap=dlsym)
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${launchers})
endfunction()
invonnx_on_standin(standin_program invonnx_program)
invonnx_on_standin(standin_device unit_test_device)

function(invonnx_standin_test name)
    invonnx_script_test(standin.${name} "standin" ${CMAKE_COMMAND} -E env ${ARGN})
endfunction()
# Operators and a few goldens on one seed; ./test --full has all of them, on three.
set(few linear_tall_ts13,nice_dynbatch_ts17,plain_lenet_ts17)
invonnx_standin_test(operators STANDIN_SEED=1 $<TARGET_FILE:standin_device> cuda)
invonnx_standin_test(goldens STANDIN_SEED=4 ${golden} --device cuda --jobs 1 --invonnx $<TARGET_FILE:standin_program>
    --families ${few} ${CMAKE_CURRENT_SOURCE_DIR}/data/models)
invonnx_standin_test(goldens_tf32 STANDIN_SEED=6 STANDIN_PRECISION=tf32 ${golden} --device cuda --precision tf32 --jobs 1
    --invonnx $<TARGET_FILE:standin_program> --families plain_lenet ${CMAKE_CURRENT_SOURCE_DIR}/data/models)
foreach(seed IN ITEMS 1 2 3)
    invonnx_standin_test(operators_${seed} STANDIN_SEED=1${seed} $<TARGET_FILE:standin_device> cuda)
    invonnx_standin_test(goldens_${seed} STANDIN_SEED=${seed} ${golden} --device cuda --jobs 1
        --invonnx $<TARGET_FILE:standin_program> ${CMAKE_CURRENT_SOURCE_DIR}/data/models)
    invonnx_full(standin.operators_${seed} standin.goldens_${seed})
endforeach()
set(depth STANDIN_SEED=5 INVONNX=$<TARGET_FILE:standin_program> INVONNX_DEVICE=cuda ${venv_python}
    ${PROJECT_SOURCE_DIR}/tests/cli/test_depth.py)
invonnx_standin_test(depth ${depth} Seed Dropout)
invonnx_standin_test(depth_all ${depth})
invonnx_full(standin.depth_all)
foreach(part IN ITEMS Steps Failures Planted Ranks)
    string(TOLOWER ${part} name)
    invonnx_standin_test(${name} ${venv_python} ${CMAKE_CURRENT_LIST_DIR}/standin/test_standin.py ${part})
endforeach()
