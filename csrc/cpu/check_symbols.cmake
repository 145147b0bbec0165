# Fails if a kernel object file shares an inline function with others: the linker would keep one copy of it, possibly
# the one compiled for instructions that the CPU at hand lacks.
#   cmake -DNM=<nm> "-DOBJECTS=<a.o;b.o>" -P check_symbols.cmake
foreach(OBJECT IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C ${OBJECT} OUTPUT_VARIABLE SYMBOLS COMMAND_ERROR_IS_FATAL ANY)
  # W and u mark shared functions and variables that are defined here; references are lower case or have no address.
  string(REGEX MATCH "[0-9a-f]+ [Wu] [^\n]*" SHARED "${SYMBOLS}")
  if(SHARED)
    message(FATAL_ERROR "${OBJECT} shares a symbol with other files: ${SHARED}")
  endif()
endforeach()
