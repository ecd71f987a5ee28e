# The kernels' compile check as a program. tools/lint.sh runs it for one model and sm_90a; here are the
# others, an architecture a test: a compilation takes the better part of a minute. Without arguments it
# checks all. 77 means that there is no NVRTC here.
add_executable(check_kernels tools/check_kernels.c)
target_link_libraries(check_kernels PRIVATE qn_engine ${CMAKE_DL_LIBS})
if(QN_DEEP)
  foreach(what sm_80 sm_100a "sm_90a;--traces")
    string(REPLACE ";--" "_" name "${what}")
    add_test(NAME tools/check_kernels_${name} COMMAND check_kernels --model qwen3-8b --arch ${what}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(tools/check_kernels_${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600 COST 70)
  endforeach()
endif()

# Where a decode step's time goes on the GPU.
add_executable(cuda_trace tools/cuda_trace.c)
target_link_libraries(cuda_trace PRIVATE qn_engine)
