/*
 * device/call.h: runs a call of device.h on the reactor's thread.
 *
 * OFS_DEVICE_CALL(session_close, (uint32_t, session), (int, keep))
 *
 * defines ofs_device_session_close(device, session, keep). It leaves its arguments in the
 * caller's frame, asks the reactor through the mailbox (ofs_device_call), and waits until the
 * reactor has run session_close(device, session, keep), a static function of the same file. So a
 * call is that function, one such line, and its declaration in device.h. From 1 to 8 arguments.
 */
#ifndef OFS_DEVICE_CALL_H
#define OFS_DEVICE_CALL_H

#include "device/mailbox.h"

#define OFS_EACH_1(use, pair) use pair
#define OFS_EACH_2(use, pair, ...) use pair OFS_EACH_1(use, __VA_ARGS__)
#define OFS_EACH_3(use, pair, ...) use pair OFS_EACH_2(use, __VA_ARGS__)
#define OFS_EACH_4(use, pair, ...) use pair OFS_EACH_3(use, __VA_ARGS__)
#define OFS_EACH_5(use, pair, ...) use pair OFS_EACH_4(use, __VA_ARGS__)
#define OFS_EACH_6(use, pair, ...) use pair OFS_EACH_5(use, __VA_ARGS__)
#define OFS_EACH_7(use, pair, ...) use pair OFS_EACH_6(use, __VA_ARGS__)
#define OFS_EACH_8(use, pair, ...) use pair OFS_EACH_7(use, __VA_ARGS__)
#define OFS_EACH_OF(_1, _2, _3, _4, _5, _6, _7, _8, each, ...) each
#define OFS_EACH(use, ...)                                                               \
	OFS_EACH_OF(__VA_ARGS__, OFS_EACH_8, OFS_EACH_7, OFS_EACH_6, OFS_EACH_5, OFS_EACH_4, \
		OFS_EACH_3, OFS_EACH_2, OFS_EACH_1, 0)                                           \
	(use, __VA_ARGS__)

#define OFS_CALL_FIELD(type, name) type name;
#define OFS_CALL_PARAMETER(type, name) , type name
#define OFS_CALL_KEEP(type, name) .name = (name),
#define OFS_CALL_PASS(type, name) , kept->name

#define OFS_DEVICE_CALL(call, ...)                                                             \
	struct call##_call {                                                                       \
		OFS_EACH(OFS_CALL_FIELD, __VA_ARGS__)                                                  \
	};                                                                                         \
	static int run_##call(struct ofs_device *device, void *argument)                           \
	{                                                                                          \
		const struct call##_call *kept = argument;                                             \
		return call(device OFS_EACH(OFS_CALL_PASS, __VA_ARGS__));                              \
	}                                                                                          \
	int ofs_device_##call(struct ofs_device *device OFS_EACH(OFS_CALL_PARAMETER, __VA_ARGS__)) \
	{                                                                                          \
		struct call##_call kept = {OFS_EACH(OFS_CALL_KEEP, __VA_ARGS__)};                      \
		return ofs_device_call(device, run_##call, &kept);                                     \
	}                                                                                          \
	struct call##_call

#endif
