# Puts src/server/page.html into qn_server as C arrays (src/server/page.h). Included by CMakeLists.txt;
# at build time CMake runs it again as a script (-P) to write them.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(page_in ${CMAKE_SOURCE_DIR}/src/server/page.html)
  set(page_out ${CMAKE_BINARY_DIR}/server_page.c)
  add_custom_command(OUTPUT ${page_out}
    COMMAND ${CMAKE_COMMAND} -D IN=${page_in} -D OUT=${page_out} -P ${CMAKE_CURRENT_LIST_FILE}
    DEPENDS ${page_in} ${CMAKE_CURRENT_LIST_FILE}
    COMMENT "Embedding the server's page")
  target_sources(qn_server PRIVATE ${page_out})
  return()
endif()

file(READ ${IN} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n    " hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUT} "/* Made by tools/page.cmake. */
#include \"server/page.h\"

const unsigned char page_text[] = {
    ${hex}};
const size_t page_bytes = sizeof page_text;
")
