/* nccl asks libtms_reach.so about NCCL, for preload/nccl.go and align.go. Where that is not preloaded, there is nothing
 * to see. */
#define _GNU_SOURCE
#include "gate.h"
#include "reach/gate.h"
#include "region.h"
#include "symbols.h"

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size, (void)data;
	return strncmp(file_of(info->dlpi_name), "libnccl", 7) == 0;
}

HIDDEN bool nccl_is_unseen(void)
{
	return region_config.nccl_registers && gate_unusable() && dl_iterate_phdr(look_at, NULL);
}

static const struct gate_nccl *there(void)
{
	return gate_unusable() ? NULL : tms_reach_gate.nccl;
}

#define X(returns, name, parameters, arguments)                                                    \
	HIDDEN returns nccl_##name parameters                                                      \
	{                                                                                          \
		return there() ? there()->name arguments : (returns)0;                             \
	}
GATE_NCCL(X)
