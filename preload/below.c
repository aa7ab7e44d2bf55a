/* below tells a call of the program from a call that CUDA makes for it, so that only the outer call does the work. */
#include "shim.h"

HIDDEN __thread bool call_is_below __attribute__((tls_model("initial-exec")));
