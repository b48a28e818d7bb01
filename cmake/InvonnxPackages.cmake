# SPDX-License-Identifier: Apache-2.0
# cpack: packages for Debian, of the program, the shared library, and what is compiled against. tools/packages.sh makes them
# as they are given to others.
set(so_package libinvonnx${PROJECT_VERSION_MAJOR})
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME invonnx)
set(CPACK_PACKAGE_VENDOR invonnx)
set(INVONNX_MAINTAINER "The authors of invonnx <invonnx@localhost>" CACHE STRING "Who packages name as their maintainer")
set(CPACK_PACKAGE_CONTACT ${INVONNX_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program library development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME invonnx)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
if(mpi_soname) # opened by its name, so that nothing else says it
    set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS openmpi-bin)
endif()
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "Finds by algebra which values of a network can be computed back from later
ones, and frees them until backward needs them. The program, its manual pages
and documents.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${so_package})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The shared library.")
set(control ${CMAKE_CURRENT_BINARY_DIR}/control)
file(CONFIGURE OUTPUT ${control}/shlibs CONTENT "libinvonnx ${PROJECT_VERSION_MAJOR} ${so_package} (>= ${PROJECT_VERSION})\n")
file(CONFIGURE OUTPUT ${control}/triggers CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${control}/shlibs ${control}/triggers)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libinvonnx-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${so_package} (= ${PROJECT_VERSION}-1)")
# What the static library is linked with.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS
    "libopenblas-dev, liblapacke-dev, libprotobuf-c-dev, libjansson-dev, libdnnl-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, the static library, and what pkg-config and CMake find them by.")

# A build for /usr is for packages of the system, which have a licence and a list of changes each, in its forms.
if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
    string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # SOURCE_DATE_EPOCH, where it is set
    file(CONFIGURE OUTPUT ${control}/changelog CONTENT "invonnx (${PROJECT_VERSION}-1) unstable; urgency=medium

  * The changes are in CHANGELOG.md.

 -- ${INVONNX_MAINTAINER}  ${date}
")
    file(CONFIGURE OUTPUT ${control}/copyright CONTENT
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: invonnx

Files: *
Copyright: the authors of invonnx
License: Apache-2.0
 On Debian the text of the licence is /usr/share/common-licenses/Apache-2.0.
")
    foreach(pair IN ITEMS "program invonnx" "library ${so_package}" "development libinvonnx-dev")
        separate_arguments(pair)
        list(GET pair 0 component)
        list(GET pair 1 package)
        set(doc ${CMAKE_INSTALL_DATADIR}/doc/${package})
        install(FILES ${control}/copyright DESTINATION ${doc} COMPONENT ${component})
        install(FILES ${control}/changelog DESTINATION ${doc} RENAME changelog.Debian COMPONENT ${component})
        install(CODE "file(GLOB pages \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${doc}/changelog.Debian\"
                \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1/invonnx*.1\")
            execute_process(COMMAND gzip -9nf \${pages} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
    endforeach()
endif()
include(CPack)
