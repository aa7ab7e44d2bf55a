/* nccl asks libtms_reach.so about NCCL, for nccl.go and align.go. Where that is not preloaded there is nothing to see. */
#define _GNU_SOURCE
#include "shim.h"
#include "gate.h"
#include "region.h"

#include <link.h>
#include <string.h>

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size, (void)data;
	const char *slash = strrchr(info->dlpi_name, '/');
	return strncmp(slash ? slash + 1 : info->dlpi_name, "libnccl", 7) == 0;
}

HIDDEN bool nccl_is_unseen(void)
{
	return region_config.nccl_registers && ipc_shares() && gate_unusable() && dl_iterate_phdr(look_at, NULL);
}

static const struct gate_nccl *there(void)
{
	return gate_unusable() ? NULL : tms_reach_gate.nccl;
}

HIDDEN bool nccl_look(size_t *cursor, bool ask, struct gate_communicator *to)
{
	return there() && there()->look(cursor, ask, to);
}

HIDDEN bool nccl_look_at_memory(size_t *cursor, struct gate_registration *to)
{
	return there() && there()->look_at_memory(cursor, to);
}

HIDDEN void nccl_hold(bool on)
{
	if (there())
		there()->hold(on);
}

HIDDEN bool nccl_is_used(void)
{
	return there()->is_used();
}

HIDDEN void nccl_together(uint64_t clique)
{
	there()->together(clique);
}

HIDDEN bool nccl_begin(bool suspend)
{
	return there()->begin(suspend);
}

HIDDEN bool nccl_is_busy(void)
{
	return there()->is_busy();
}

HIDDEN void nccl_give_up(void)
{
	there()->give_up();
}

HIDDEN bool nccl_sequences(size_t *cursor, struct gate_sequence *to)
{
	return there()->sequences(cursor, to);
}

HIDDEN bool nccl_is_launching(void)
{
	return there()->is_launching();
}

HIDDEN bool nccl_has_captured(void)
{
	return there()->has_captured();
}

HIDDEN void nccl_freeze(void)
{
	there()->freeze();
}

HIDDEN void nccl_limit(const struct gate_sequence *targets, size_t count)
{
	there()->limit(targets, count);
}

HIDDEN void nccl_release(void)
{
	if (there())
		there()->release();
}
