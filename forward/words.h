/* words has the parameters of functions that are passed on, as they are declared and as they are passed: of given
 * types, or all words (TYPES, WORDS). */
#ifndef FORWARD_WORDS_H
#define FORWARD_WORDS_H

#include <stdint.h>

#define PARAMETERS_0(none) none
#define PARAMETERS_1(A) A a
#define PARAMETERS_2(A, B) A a, B b
#define PARAMETERS_3(A, B, C) A a, B b, C c
#define PARAMETERS_4(A, B, C, D) A a, B b, C c, D d
#define PARAMETERS_5(A, B, C, D, E) A a, B b, C c, D d, E e
#define PARAMETERS_6(A, B, C, D, E, F) A a, B b, C c, D d, E e, F f
#define PARAMETERS_7(A, B, C, D, E, F, G) A a, B b, C c, D d, E e, F f, G g
#define PARAMETERS_8(A, B, C, D, E, F, G, H) A a, B b, C c, D d, E e, F f, G g, H h
#define PARAMETERS_9(A, B, C, D, E, F, G, H, I) A a, B b, C c, D d, E e, F f, G g, H h, I i

/* Parameters on the stack are volatile, so that they are read when the call is made: in registers, which must be saved
 * first, they would cost more than the gate. */
#define WORDS_0 void
#define WORDS_1 uintptr_t a
#define WORDS_2 WORDS_1, uintptr_t b
#define WORDS_3 WORDS_2, uintptr_t c
#define WORDS_4 WORDS_3, uintptr_t d
#define WORDS_5 WORDS_4, uintptr_t e
#define WORDS_6 WORDS_5, uintptr_t f
#define WORDS_7 WORDS_6, volatile uintptr_t g
#define WORDS_8 WORDS_7, volatile uintptr_t h
#define WORDS_9 WORDS_8, volatile uintptr_t i
#define WORDS_10 WORDS_9, volatile uintptr_t j
#define WORDS_11 WORDS_10, volatile uintptr_t k
#define TYPES_1 uintptr_t
#define TYPES_2 TYPES_1, uintptr_t
#define TYPES_3 TYPES_2, uintptr_t
#define TYPES_4 TYPES_3, uintptr_t
#define TYPES_5 TYPES_4, uintptr_t
#define TYPES_6 TYPES_5, uintptr_t
#define TYPES_7 TYPES_6, uintptr_t
#define TYPES_8 TYPES_7, uintptr_t
#define TYPES_9 TYPES_8, uintptr_t
#define PASS_0
#define PASS_1 a
#define PASS_2 PASS_1, b
#define PASS_3 PASS_2, c
#define PASS_4 PASS_3, d
#define PASS_5 PASS_4, e
#define PASS_6 PASS_5, f
#define PASS_7 PASS_6, g
#define PASS_8 PASS_7, h
#define PASS_9 PASS_8, i
#define PASS_10 PASS_9, j
#define PASS_11 PASS_10, k

#endif
