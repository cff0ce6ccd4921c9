# Sources of one target compiled several at a time. Most of what the compiler does for a source is reading and instantiating
# the same headers (JSON first of all), so eight sources together take little more than one.
# Sources whose file-local names collide with a neighbour's are compiled alone: name them behind ALONE.
#   lockstep_unity(TARGET [ALONE SOURCE...])
function(lockstep_unity target)
  cmake_parse_arguments(arg "" "" ALONE ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(LOCKSTEP_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # It takes an included source for a header, whose types should not be local to a file.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
  if(arg_ALONE)
    set_source_files_properties(${arg_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
