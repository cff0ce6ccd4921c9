# Writes the commit of the source tree into a header, at every build, touching it only when it changes.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
                OUTPUT_VARIABLE LOCKSTEP_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT LOCKSTEP_COMMIT)
  set(LOCKSTEP_COMMIT unknown)
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
