# `cmake --install BUILD --prefix DIR` and find_package(Lockstep): a target Lockstep::<room> for each room of src/, and
# Lockstep::Lockstep for all of them. Headers lie in include/lockstep and are included as "room/file.h".
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# lockstep_install(lockstep_ROOM) makes a library part of the package, as Lockstep::ROOM here and where it is installed.
function(lockstep_install target)
  string(REGEX REPLACE "^lockstep_" "" name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  add_library(Lockstep::${name} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  install(TARGETS ${target} EXPORT LockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# To be called behind the last lockstep_install.
function(lockstep_install_package)
  add_library(lockstep_all INTERFACE)
  target_link_libraries(lockstep_all INTERFACE lockstep_recipes)  # which may include every room, so it links them all
  set_target_properties(lockstep_all PROPERTIES EXPORT_NAME Lockstep)
  add_library(Lockstep::Lockstep ALIAS lockstep_all)
  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep)
  install(TARGETS lockstep_all EXPORT LockstepTargets)
  install(EXPORT LockstepTargets NAMESPACE Lockstep:: DESTINATION ${package})
  set(LOCKSTEP_PACKAGE_CUDA OFF)
  if(LOCKSTEP_HAS_CUDA)
    set(LOCKSTEP_PACKAGE_CUDA ON)
  endif()
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in LockstepConfig.cmake INSTALL_DESTINATION ${package})
  write_basic_package_version_file(LockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/LockstepConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/LockstepConfigVersion.cmake
          DESTINATION ${package})
  # What stands behind an op is not part of the interface.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep
          FILES_MATCHING PATTERN "*.h" PATTERN cpu EXCLUDE PATTERN cuda EXCLUDE PATTERN absent EXCLUDE)
endfunction()
