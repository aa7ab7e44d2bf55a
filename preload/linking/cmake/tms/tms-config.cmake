# find_package(tms) defines tms::tms. libtms.so is among the link options, which come before all libraries, so that it
# comes before libcudart whatever the order in target_link_libraries; and a linker that leaves out libraries (a
# distribution's --as-needed) keeps libcudart.
get_filename_component(_tms "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT TARGET tms::tms)
  add_library(tms::tms INTERFACE IMPORTED)
  set_target_properties(tms::tms PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_tms}"
    INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed;-Wl,-rpath,${_tms};${_tms}/libtms.so")
endif()
unset(_tms)
