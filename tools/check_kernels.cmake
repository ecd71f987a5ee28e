# The kernels' compile check as a program and as a test; 77 means that there is no NVRTC here.
add_executable(check_kernels tools/check_kernels.c)
target_link_libraries(check_kernels PRIVATE qn_engine ${CMAKE_DL_LIBS})
# One model, an architecture a test: a compilation takes the better part of a minute. Without
# arguments it checks all.
set(archs sm_90a)
if(QN_DEEP)
  list(APPEND archs sm_80 sm_100a)
  add_test(NAME tools/check_kernels_traces COMMAND check_kernels --model qwen3-8b --arch sm_90a --traces
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(tools/check_kernels_traces PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 COST 70)
endif()
foreach(arch ${archs})
  add_test(NAME tools/check_kernels_${arch} COMMAND check_kernels --model qwen3-8b --arch ${arch}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(tools/check_kernels_${arch} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 COST 70)
endforeach()

# Where a decode step's time goes on the GPU.
add_executable(cuda_trace EXCLUDE_FROM_ALL tools/cuda_trace.c)
target_link_libraries(cuda_trace PRIVATE qn_engine)
