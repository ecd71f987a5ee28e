# libquern.so, libquern.a, the texts that quern prints about itself, and `install`.
#
# Both libraries hold every layer and show the names of quern.h (qn_*) only: the shared one through a version script, the static one as a single object whose other
# symbols were made local. Instrumented builds make neither.
if(QN_SANITIZE OR QN_COVERAGE OR QN_FUZZ OR NOT TARGET quern)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(library_layers "")
foreach(layer base graph block search grammar chat model plan task kernels_cpu runtime codegen engine inspect)
  get_target_property(type qn_${layer} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    list(APPEND library_layers qn_${layer})
  endif()
endforeach()
set(library_files "")
foreach(layer ${library_layers})
  list(APPEND library_files $<TARGET_FILE:${layer}>)
endforeach()
# The static library swallows third-party archives. The shared one depends on their shared objects:
# Debian builds the archives without position-independent code.
set(library_archives "")
set(library_needs "")
foreach(library ${JANSSON} ${PCRE2} ${UTF8PROC})
  if(library MATCHES "\\.a$")
    list(APPEND library_archives ${library})
  else()
    list(APPEND library_needs ${library})
  endif()
endforeach()
find_library(JANSSON_SO NAMES jansson REQUIRED)
find_library(PCRE2_SO NAMES pcre2-8 REQUIRED)
find_library(UTF8PROC_SO NAMES utf8proc REQUIRED)

set(library_map ${CMAKE_BINARY_DIR}/libquern.map)
file(WRITE ${library_map} "{ global: qn_*; local: *; };\n")
file(WRITE ${CMAKE_BINARY_DIR}/libquern.c "typedef int nothing;\n")
add_library(quern_shared SHARED ${CMAKE_BINARY_DIR}/libquern.c)
add_dependencies(quern_shared ${library_layers})
set_target_properties(quern_shared PROPERTIES OUTPUT_NAME quern VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS "${library_map};${library_files}")
target_link_libraries(quern_shared PRIVATE
  -Wl,--whole-archive ${library_files} -Wl,--no-whole-archive
  ${JANSSON_SO} ${PCRE2_SO} ${UTF8PROC_SO} Threads::Threads m ${CMAKE_DL_LIBS})
target_link_options(quern_shared PRIVATE -Wl,--version-script=${library_map} -Wl,-z,defs)

set(library_static ${CMAKE_BINARY_DIR}/libquern.a)
add_custom_command(OUTPUT ${library_static}
  COMMAND ${CMAKE_LINKER} -r -o libquern.o --whole-archive ${library_files} --no-whole-archive
          ${library_archives}
  COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=qn_* libquern.o
  COMMAND ${CMAKE_COMMAND} -E rm -f libquern.a
  COMMAND ${CMAKE_AR} rcs libquern.a libquern.o
  COMMAND ${CMAKE_COMMAND} -E rm -f libquern.o
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
  DEPENDS ${library_layers} ${library_files}
  COMMENT "Making libquern.a")
add_custom_target(quern_static ALL DEPENDS ${library_static})

# The manual page and the completion scripts come out of the program itself.
set(texts_dir ${CMAKE_BINARY_DIR}/share)
add_custom_command(OUTPUT ${texts_dir}/quern.1
  COMMAND ${CMAKE_COMMAND} -E make_directory ${texts_dir}
  COMMAND quern man > ${texts_dir}/quern.1
  COMMAND quern completion bash > ${texts_dir}/quern
  COMMAND quern completion zsh > ${texts_dir}/_quern
  COMMAND quern completion fish > ${texts_dir}/quern.fish
  DEPENDS quern
  COMMENT "Writing the manual page and completions")
add_custom_target(quern_texts ALL DEPENDS ${texts_dir}/quern.1)

add_executable(example_generate examples/generate.c)
target_link_libraries(example_generate PRIVATE quern_shared)

install(TARGETS quern RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS quern_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${library_static} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/quern.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${texts_dir}/quern.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${texts_dir}/quern
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${texts_dir}/_quern DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${texts_dir}/quern.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

set(library_private "-lm -lpthread -ldl")
foreach(library ${library_needs})
  get_filename_component(name ${library} NAME_WE)
  string(REGEX REPLACE "^lib" "-l" name ${name})
  string(APPEND library_private " ${name}")
endforeach()
configure_file(tools/quern.pc.in quern.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_package_config_file(tools/QuernConfig.cmake.in QuernConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Quern
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/QuernConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/QuernConfig.cmake ${CMAKE_BINARY_DIR}/QuernConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Quern)
