// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The driver's tracepoints, as functions that Rust can call. */

/* bindgen needs only the prototypes in this file. */
#ifndef __BINDGEN__
#define CREATE_TRACE_POINTS
#endif
#include "trace.h"

bool efa_trace_commands_enabled(void)
{
	return trace_efa_command_submitted_enabled() || trace_efa_command_completed_enabled();
}

void efa_trace_command_submitted(const struct device *dev, const char *opcode, u32 length, u16 id)
{
	trace_efa_command_submitted(dev, opcode, length, id);
}

void efa_trace_command_completed(const struct device *dev, const char *opcode,
				 u32 length, u8 status, u64 latency)
{
	trace_efa_command_completed(dev, opcode, length, status, latency);
}

void efa_trace_event(const struct device *dev, u16 group, u16 syndrome)
{
	trace_efa_event(dev, group, syndrome);
}

void efa_trace_reset(const struct device *dev, const char *reason, u32 length)
{
	trace_efa_reset(dev, reason, length);
}

void efa_trace_state(const struct device *dev, const char *state, u32 length)
{
	trace_efa_state(dev, state, length);
}
