# Puts the pages of tools/view into qn_inspect as a C table (src/inspect/view_page.h). Included by
# CMakeLists.txt; at build time CMake runs it again as a script (-P) to write the table. In a page,
# the line "@@common" stands for common.js.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(view_dir ${CMAKE_CURRENT_LIST_DIR})
  file(GLOB view_files CONFIGURE_DEPENDS ${view_dir}/*.html ${view_dir}/*.js ${view_dir}/*.css)
  set(view_out ${CMAKE_BINARY_DIR}/view_pages.c)
  add_custom_command(OUTPUT ${view_out}
    COMMAND ${CMAKE_COMMAND} -D DIR=${view_dir} -D OUT=${view_out} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${view_files} ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Embedding pages")
  target_sources(qn_inspect PRIVATE ${view_out})
  return()
endif()

file(GLOB pages ${DIR}/*.html)
list(SORT pages)
file(READ ${DIR}/common.js common HEX)
file(READ ${DIR}/common.css style HEX)
string(HEX "@@common\n" common_mark)
string(HEX "@@style\n" style_mark)
set(texts "")
set(table "")
foreach(page IN LISTS pages)
  get_filename_component(name ${page} NAME_WE)
  file(READ ${page} hex HEX)
  string(REPLACE "${common_mark}" "${common}" hex "${hex}")
  string(REPLACE "${style_mark}" "${style}" hex "${hex}")
  string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND texts "static const unsigned char page_${name}[] = {\n    ${hex}0};\n")
  string(APPEND table "    {\"${name}\", page_${name}, sizeof page_${name} - 1},\n")
endforeach()
file(WRITE ${OUT} "/* Made by tools/view/embed.cmake. */
#include \"inspect/view_page.h\"

${texts}
const struct view_page view_pages[] = {
${table}    {0, 0, 0}};
")
