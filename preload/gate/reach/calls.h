/* calls lists the functions of the driver that libtms_reach.so stands in front of, of CUDA 12 and 13, old versions of
 * them included (table.h, from forward/calls/classes.txt, which has the reasons):
 *
 *   X(symbol, how many arguments, which of them (a, b ...) is the stream, kind, room, of which argument, the first
 *     CUDA version that has it)
 *   TWICE(X, version, version of the other, suffix of the other, symbol, ...), for a function that CUDA has with the
 *     suffix _ptsz or _ptds, too
 *
 * Each argument is an integer, a pointer or a struct of 8 bytes, so one word. The kind says what stops the call:
 *
 * WORK     a pause, until memory is back.
 * CAPTURE  the same, and already what comes before a pause, which lets captures end and none begin.
 * POLL     only the driver's checkpoint.
 * LEND     nothing here: it is in the list so that a newer version of it is noticed. libtms.so notes the call.
 * PASS     nothing.
 *
 * The room says whether a call that found too little memory is made again once other processes have made room:
 *
 * NEVER    it is not.
 * SOME     it is, for some memory on the current device.
 * BYTES    it is, for the argument's bytes on the current device.
 * DEVICE   it is, for some memory on the argument's device.
 *
 * Not in the list are functions of cudaGL.h, cudaEGL.h and cudaVDPAU.h, whose memory is not the program's to pause. */
#ifndef REACH_CALLS_H
#define REACH_CALLS_H

#include "table.h"

enum gate_room { NEVER, SOME, BYTES, DEVICE };

#endif
