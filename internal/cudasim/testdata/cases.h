// A fixture is a list of cases: it runs one by name, or lists all names.
#include "fixture.h"

static struct test_case {
	const char *name;
	void (*run)(void);
	int started; // device 0 is, before it runs
	struct test_case *next;
} *cases;

#define ADD(case_name, is_started)                                                                           \
	static void case_name(void);                                                                         \
	__attribute__((constructor)) static void add_##case_name(void)                                       \
	{                                                                                                    \
		static struct test_case this;                                                                \
		this = (struct test_case){#case_name, case_name, is_started, cases};                         \
		cases = &this;                                                                               \
	}                                                                                                    \
	static void case_name(void)
#define CASE(name) ADD(name, 0)
#define STARTED(name) ADD(name, 1)

int main(int argc, char **argv)
{
	for (struct test_case *c = cases; c; c = c->next) {
		if (argc < 2) {
			puts(c->name);
		} else if (!strcmp(c->name, argv[1])) {
			if (c->started)
				start(0);
			c->run();
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}
