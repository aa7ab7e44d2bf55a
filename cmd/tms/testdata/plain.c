// Knows nothing of CUDA; with an argument it stays until its standard input ends.
#include <stdio.h>

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1) {
		puts("up");
		fflush(stdout);
		getchar();
	}
	return 0;
}
