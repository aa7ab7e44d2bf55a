/* alias is libtms.so under another name: an empty library that --filter makes the loader replace by
 * $ORIGIN/../lib/libtms.so, at the same place in the search order. That place is what a DT_NEEDED
 * entry would not give: a preload's dependencies come after the program's own, libcudart among them.
 * All names together are one library in the process, unlike copies. */

/* Clients look into the file for the variables that the library knows. */
__attribute__((used)) static const char variables[] = VARIABLES;
