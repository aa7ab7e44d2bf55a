// A program that loads libraries at run time.
#include <dlfcn.h>

int main(int argc, char **argv)
{
	return argc > 1 && !dlopen(argv[1], RTLD_NOW);
}
