/* A library whose constructor calls the program: the thread that opens the library then holds the loader's lock. */
void in_constructor(void);

__attribute__((constructor)) static void begin(void)
{
	in_constructor();
}
