// A library with nothing in it but its name.
int empty_library;
