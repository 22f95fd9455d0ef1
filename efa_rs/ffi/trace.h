/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The driver's tracepoints, which only macros of C can declare. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM efa

#if !defined(EFA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define EFA_TRACE_H

#include <linux/device.h>
#include <linux/tracepoint.h>

TRACE_EVENT(efa_command_submitted,
	    TP_PROTO(const struct device *dev, const char *opcode, u32 length, u16 id),
	    TP_ARGS(dev, opcode, length, id),
	    TP_STRUCT__entry(__string(device, dev_name(dev))
			     __string_len(opcode, opcode, length)
			     __field(u16, id)),
	    TP_fast_assign(__assign_str(device); __assign_str(opcode); __entry->id = id;),
	    TP_printk("%s %s id=%u", __get_str(device), __get_str(opcode), __entry->id)
);

TRACE_EVENT(efa_command_completed,
	    TP_PROTO(const struct device *dev, const char *opcode, u32 length, u8 status,
		     u64 latency),
	    TP_ARGS(dev, opcode, length, status, latency),
	    TP_STRUCT__entry(__string(device, dev_name(dev))
			     __string_len(opcode, opcode, length)
			     __field(u8, status) __field(u64, latency_us)),
	    TP_fast_assign(__assign_str(device); __assign_str(opcode); __entry->status = status;
			   __entry->latency_us = latency;),
	    TP_printk("%s %s status=%u latency=%lluus", __get_str(device), __get_str(opcode),
		      __entry->status, __entry->latency_us)
);

TRACE_EVENT(efa_event,
	    TP_PROTO(const struct device *dev, u16 group, u16 syndrome),
	    TP_ARGS(dev, group, syndrome),
	    TP_STRUCT__entry(__string(device, dev_name(dev))
			     __field(u16, group) __field(u16, syndrome)),
	    TP_fast_assign(__assign_str(device); __entry->group = group;
			   __entry->syndrome = syndrome;),
	    TP_printk("%s group=%u syndrome=%u", __get_str(device), __entry->group,
		      __entry->syndrome)
);

DECLARE_EVENT_CLASS(efa_text,
		    TP_PROTO(const struct device *dev, const char *text, u32 length),
		    TP_ARGS(dev, text, length),
		    TP_STRUCT__entry(__string(device, dev_name(dev))
				     __string_len(text, text, length)),
		    TP_fast_assign(__assign_str(device); __assign_str(text);),
		    TP_printk("%s %s", __get_str(device), __get_str(text))
);
DEFINE_EVENT(efa_text, efa_reset,
	     TP_PROTO(const struct device *dev, const char *text, u32 length),
	     TP_ARGS(dev, text, length));
DEFINE_EVENT(efa_text, efa_state,
	     TP_PROTO(const struct device *dev, const char *text, u32 length),
	     TP_ARGS(dev, text, length));

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
