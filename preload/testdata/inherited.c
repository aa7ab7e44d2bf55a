/* Prints the environment as a program sees it, by four ways that must agree: environ, main's third argument, what lies
 * behind its arguments, and getenv; and as its children see it. */
#include "host.h"

extern char **environ;

int main(int argc, char **argv, char **environment)
{
	int count = 0;
	EXPECT(environment == environ, true);
	for (char **entry = environ; *entry; entry++, count++) {
		char name[256];
		snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
		CHECK(getenv(name));
		EXPECT(argv[argc + 1 + count] == *entry, true);
	}
	EXPECT(argv[argc + 1 + count] == NULL, true);
	execl("/usr/bin/env", "env", (char *)NULL);
	return 1;
}
