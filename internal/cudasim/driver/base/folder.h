// The folder in which the processes of a user that share devices meet, and where memory is that outlives its maker.
#ifndef CUDASIM_FOLDER_H
#define CUDASIM_FOLDER_H

#include <stdbool.h>

struct folder {
	char path[64];
};

bool folder_find(struct folder *folder); // false: it cannot be used, and errno says why

#endif
