# The kernels' compile check as a program and as a test; 77 means that there is no NVRTC here.
add_executable(check_kernels tools/check_kernels.c)
target_link_libraries(check_kernels PRIVATE qn_codegen qn_model ${CMAKE_DL_LIBS})
# One model: a compilation takes the better part of a minute. Without arguments it checks all.
add_test(NAME tools/check_kernels COMMAND check_kernels --model qwen3-8b WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(tools/check_kernels PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)

# Where a decode step's time goes on the GPU.
add_executable(cuda_trace EXCLUDE_FROM_ALL tools/cuda_trace.c)
target_link_libraries(cuda_trace PRIVATE qn_engine)
