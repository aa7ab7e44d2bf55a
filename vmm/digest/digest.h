/* digest.h is the arithmetic of the content hash, for the GPU (digest.cu) and for the simulator, which
 * compiles the same lines for the host.
 *
 * A block is hashed by DIGEST_THREADS threads. It is read in groups of four 32-bit words, and thread t
 * takes two of them at a time: groups t and t + DIGEST_THREADS first, and so on every 2 DIGEST_THREADS
 * groups; beyond the end words are 0. It folds them into a polynomial over the integers modulo
 * 2^61 - 1,
 *
 *     sum = sum * r + k[0] * w[0] + ... + k[7] * w[7]
 *
 * and the digest of the block is the sum over t of sum_t * q^t. That is done twice, with independent
 * keys r, k, q. docs/design/digest.md has the odds of a collision. */
#ifndef DIGEST_H
#define DIGEST_H

#define DIGEST_THREADS 256
#define DIGEST_LANES 2 /* halves of a digest, each with keys of its own */
#define DIGEST_PRIME ((1ull << 61) - 1)

typedef unsigned int digest_word;
typedef unsigned long long digest_number; /* below DIGEST_PRIME */

#ifdef __CUDACC__
#define DIGEST_INLINE static __device__ __forceinline__
#define DIGEST_HIGH(a, b) __umul64hi(a, b)
#else
#define DIGEST_INLINE static inline
#define DIGEST_HIGH(a, b) ((digest_number)(((unsigned __int128)(a) * (b)) >> 64))
#endif

/* r and q are random numbers below DIGEST_PRIME; k[i] is high[i] * 2^29 + low[i], of which both parts are
 * random numbers below 2^29: the sum of eight products of such a part and a word has 64 bits. */
struct digest_keys {
	digest_number r, q;
	digest_word low[8], high[8];
};

/* One block to hash: bytes is a multiple of 16. */
struct digest_block {
	digest_number address, bytes;
};

/* A number that is high * 2^64 + low modulo 2^61 - 1, and below 2^61 + 4; for high below 2^60. */
DIGEST_INLINE digest_number digest_reduce(digest_number high, digest_number low)
{
	digest_number folded = (low & DIGEST_PRIME) + (low >> 61 | high << 3);
	return (folded & DIGEST_PRIME) + (folded >> 61);
}

DIGEST_INLINE digest_number digest_multiply(digest_number a, digest_number b)
{
	return digest_reduce(DIGEST_HIGH(a, b), a * b);
}

DIGEST_INLINE digest_number digest_add(digest_number a, digest_number b)
{
	return digest_reduce(0, a + b);
}

/* The number itself, of what digest_reduce returns. */
DIGEST_INLINE digest_number digest_final(digest_number a)
{
	return a >= DIGEST_PRIME ? a - DIGEST_PRIME : a;
}

/* One step of the polynomial. */
DIGEST_INLINE digest_number digest_step(digest_number sum, const struct digest_keys *keys, const digest_word w[8])
{
	digest_number low = 0, high = 0;
	for (int i = 0; i < 8; i++) {
		low += (digest_number)keys->low[i] * w[i];
		high += (digest_number)keys->high[i] * w[i];
	}
	digest_number product = sum * keys->r, carry;
	digest_number total = product + low;
	carry = total < product;
	product = total;
	total += high << 29;
	carry += total < product;
	return digest_reduce(DIGEST_HIGH(sum, keys->r) + (high >> 35) + carry, total);
}

DIGEST_INLINE digest_number digest_power(digest_number base, unsigned exponent)
{
	digest_number power = 1;
	for (; exponent; exponent >>= 1) {
		if (exponent & 1)
			power = digest_multiply(power, base);
		base = digest_multiply(base, base);
	}
	return power;
}

#endif
