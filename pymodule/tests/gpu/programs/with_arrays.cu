/* Memory of other shapes, made in each step: pitched, three-dimensional, and an array behind a texture. */
#include "steps.h"

enum { WIDTH = 1000, HEIGHT = 800, DEPTH = 3 };

static __global__ void sample(unsigned *rows, size_t pitch, cudaTextureObject_t texture)
{
	unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
	if (x < WIDTH) {
		unsigned *row = (unsigned *)((char *)rows + y * pitch);
		row[x] = row[x] * 1664525u + tex2D<unsigned>(texture, x + .5f, y + .5f);
	}
}

int main(int argc, char **argv)
{
	const int steps = argc > 1 ? atoi(argv[1]) : 0;
	static unsigned host[HEIGHT][WIDTH];
	const size_t line = WIDTH * sizeof(unsigned), kept_size = 256 << 20;
	const dim3 blocks((WIDTH + 255) / 256, HEIGHT);
	unsigned *rows, *kept;
	size_t pitch;
	int number = 0;
	CHECK(cudaMalloc((void **)&kept, kept_size));
	CHECK(cudaMemset(kept, 3, kept_size));
	CHECK(cudaMallocPitch((void **)&rows, &pitch, line, HEIGHT));
	CHECK(cudaMemset2D(rows, pitch, 1, line, HEIGHT));
	for (; goes_on(number, steps); number++) {
		cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
		cudaResourceDesc resource = {};
		cudaTextureDesc how = {};
		cudaTextureObject_t texture;
		cudaPitchedPtr cube;
		cudaMemcpy3DParms copy = {};
		for (int y = 0; y < HEIGHT; y++)
			host[y][number % WIDTH] += (unsigned)(number + y);
		CHECK(cudaMallocArray(&resource.res.array.array, &format, WIDTH, HEIGHT, 0));
		CHECK(cudaMemcpy2DToArray(resource.res.array.array, 0, 0, host, line, line, HEIGHT, cudaMemcpyHostToDevice));
		resource.resType = cudaResourceTypeArray;
		how.readMode = cudaReadModeElementType;
		CHECK(cudaCreateTextureObject(&texture, &resource, &how, NULL));
		sample<<<blocks, 256>>>(rows, pitch, texture);
		CHECK(cudaGetLastError());
		CHECK(cudaMalloc3D(&cube, make_cudaExtent(line, HEIGHT, DEPTH)));
		copy.srcPtr = make_cudaPitchedPtr(rows, pitch, line, HEIGHT);
		copy.dstPtr = cube;
		copy.extent = make_cudaExtent(line, HEIGHT, 1);
		copy.kind = cudaMemcpyDeviceToDevice;
		CHECK(cudaMemcpy3D(&copy));
		CHECK(cudaMemcpy2D(host, line, cube.ptr, cube.pitch, line, HEIGHT, cudaMemcpyDeviceToHost));
		note(host, line);
		CHECK(cudaFree(cube.ptr));
		CHECK(cudaDestroyTextureObject(texture));
		CHECK(cudaFreeArray(resource.res.array.array));
		if (number == 0)
			ready(kept_size);
	}
	note(host, sizeof host);
	unsigned *all = (unsigned *)malloc(kept_size);
	CHECK(cudaMemcpy(all, kept, kept_size, cudaMemcpyDeviceToHost));
	note(all, kept_size);
	return end(number);
}
