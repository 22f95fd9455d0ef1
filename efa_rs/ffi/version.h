/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The driver's version. Defined only here. */
#define EFA_VERSION_MAJOR 0
#define EFA_VERSION_MINOR 1
#define EFA_VERSION_SUBMINOR 0

#define EFA_STRING_(x) #x
#define EFA_STRING(x) EFA_STRING_(x)
#define EFA_VERSION EFA_STRING(EFA_VERSION_MAJOR) "." EFA_STRING(EFA_VERSION_MINOR) "." \
	EFA_STRING(EFA_VERSION_SUBMINOR)
