/* suspending.c records late that a communicator is suspended: once the file LATE is there. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static inline void come_late(int said)
{
	enum { SUSPENDED_IS = 2 }; /* of enum phase */
	while (said == SUSPENDED_IS && getenv("LATE") && access(getenv("LATE"), F_OK) != 0)
		usleep(1000);
}
#undef atomic_store
#define atomic_store(object, value) \
	({ \
		__auto_type value_ = (value); \
		come_late((int)(intptr_t)value_); \
		atomic_store_explicit(object, value_, memory_order_seq_cst); \
	})
#undef atomic_compare_exchange_strong
#define atomic_compare_exchange_strong(object, expected, value) \
	(come_late(value), \
	 atomic_compare_exchange_strong_explicit(object, expected, value, memory_order_seq_cst, memory_order_seq_cst))
