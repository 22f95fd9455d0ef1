// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Module metadata that the module! macro has no key for. */

#include <linux/module.h>

#include "version.h"

MODULE_VERSION(EFA_VERSION);
/* Programs look for /dev/infiniband/uverbs* as soon as the device is registered. */
MODULE_SOFTDEP("pre: ib_uverbs");
