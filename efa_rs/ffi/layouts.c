// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Sizes that the generated bindings are compared with, in a file that bindgen does not read. */

#include "objects.h"

const size_t efa_sizeof_ib_device = sizeof(struct ib_device);
const size_t efa_sizeof_ib_device_ops = sizeof(struct ib_device_ops);
const size_t efa_sizeof_ib_ucontext = sizeof(struct ib_ucontext);
