// A process that has used up all but some two hundred of its mappings, and stays until its standard input ends.
#include <stdio.h>
#include <sys/mman.h>

enum { PAGE = 4096, MOST = 1 << 22, LEFT = 200 };

int main(void)
{
	char *pages = mmap(NULL, (size_t)MOST * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	long made = 0;
	while (made < MOST && mprotect(pages + made * PAGE, PAGE, PROT_NONE) == 0)
		made += 2;
	for (int i = 0; i < LEFT / 2; i++, made -= 2)
		mprotect(pages + (made - 2) * PAGE, PAGE, PROT_READ);
	puts("up");
	fflush(stdout);
	getchar();
	return 0;
}
