/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The versions of driver, packages and module. Defined only here. */
#define EFA_VERSION_MAJOR 0
#define EFA_VERSION_MINOR 1
#define EFA_VERSION_SUBMINOR 0
/* The release of Amazon's driver whose interface this one has. 3.4.0 sends relaxed ordering. */
#define EFA_INTERFACE "3.3.1"
#define EFA_VERSION \
	EFA_INTERFACE "-rs" __stringify(EFA_VERSION_MAJOR.EFA_VERSION_MINOR.EFA_VERSION_SUBMINOR)
