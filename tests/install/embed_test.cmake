# examples/embed.cpp does what it says: cmake -DEMBED=PROGRAM -DMODEL=models/arith -P embed_test.cmake
execute_process(COMMAND ${EMBED} ${MODEL} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE result)
message("${output}${error}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "it ended with ${result}")
endif()

# The base guesses; the published version, two steps later, works the same sum out and is right.
foreach(wanted
    "base +57[+]68=#### 130\n"
    "step 1 +loss 0[.][0-9]+  grad_norm 0[.][0-9]+\nstep 2 +loss 0[.][0-9]+  grad_norm 0[.][0-9]+\n"
    "published +actor version 0, 0 bytes copied\n"
    "actor version 0 57[+]68=ones 15 tens 12 #### 125\n"
    "engine's differ by at most 0\n")
  if(NOT output MATCHES "${wanted}")
    message(FATAL_ERROR "it does not print ${wanted}")
  endif()
endforeach()
string(REGEX MATCH "step 1 +loss ([0-9.]+)" first "${output}")
set(first ${CMAKE_MATCH_1})
string(REGEX MATCH "step 2 +loss ([0-9.]+)" second "${output}")
if(NOT CMAKE_MATCH_1 LESS first)
  message(FATAL_ERROR "the loss does not fall")
endif()

# An error is an exit code and a message, not a crash.
execute_process(COMMAND ${EMBED} ${MODEL}/nowhere OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE result)
if(NOT result EQUAL 1 OR NOT error MATCHES "nowhere")
  message(FATAL_ERROR "a directory that does not exist: ${result} ${error}")
endif()
