# Puts the texts that NVRTC compiles at run time into qn_codegen as a C table (src/codegen/embed.h).
# Included by CMakeLists.txt; at build time CMake runs it again as a script (-P) to write the table.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  file(GLOB_RECURSE embed_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cuh
    ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.h ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.def)
  file(GLOB embed_shared CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/src/base/abi.h
    ${CMAKE_SOURCE_DIR}/src/base/sampling.def
    ${CMAKE_SOURCE_DIR}/src/graph/attr.def
    ${CMAKE_SOURCE_DIR}/src/graph/expert_list.h
    ${CMAKE_SOURCE_DIR}/src/graph/kv_row.h
    ${CMAKE_SOURCE_DIR}/src/graph/weight_source.h
    ${CMAKE_SOURCE_DIR}/src/graph/model_spec.h
    ${CMAKE_SOURCE_DIR}/src/graph/dtype.def
    ${CMAKE_SOURCE_DIR}/src/graph/dtype.h
    ${CMAKE_SOURCE_DIR}/src/graph/op.h
    ${CMAKE_SOURCE_DIR}/src/graph/op.def
    ${CMAKE_SOURCE_DIR}/src/graph/partials.h
    ${CMAKE_SOURCE_DIR}/src/task/program.h
    ${CMAKE_SOURCE_DIR}/src/runtime/rt_*.h
    ${CMAKE_SOURCE_DIR}/src/kernels/*.h
    ${CMAKE_SOURCE_DIR}/src/codegen/cuda_abi.h)
  set(embed_files ${embed_kernels} ${embed_shared})
  list(SORT embed_files)
  set(embed_out ${CMAKE_BINARY_DIR}/embed_table.c)
  # The list of names goes through a file: a command line would have to quote it.
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/embed_list.txt CONTENT "${embed_files}")
  add_custom_command(OUTPUT ${embed_out}
    COMMAND ${CMAKE_COMMAND} -D LIST=${CMAKE_BINARY_DIR}/embed_list.txt -D OUT=${embed_out}
            -D ROOT=${CMAKE_SOURCE_DIR}/src/ -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${embed_files} ${CMAKE_BINARY_DIR}/embed_list.txt ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Embedding kernel sources")
  target_sources(qn_codegen PRIVATE ${embed_out})
  return()
endif()

file(READ ${LIST} files)
set(table "")
set(texts "")
set(n 0)
foreach(file IN LISTS files)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(REPLACE "${ROOT}" "" name "${file}")
  string(APPEND texts "static const unsigned char text_${n}[] = {\n    ${hex}0};\n")
  string(APPEND table "    {\"${name}\", text_${n}, sizeof text_${n} - 1},\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "/* Made by tools/embed.cmake from the files named below. */
#include \"codegen/embed.h\"

${texts}
const struct embed_file embed_files[] = {
${table}};
const size_t embed_n_files = ${n};
")
