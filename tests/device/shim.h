// The part of CUDA C++ that the kernels of cuda/ use, for a C++ compiler: the same source text runs on
// the CPU, one thread after the other. Threads of a block run to their end in turn, so a kernel with a
// barrier does not compile here (no __syncthreads): it would need fibers.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __forceinline__ inline

struct alignas(16) int4 {
    int x, y, z, w;
};

static inline int4 make_int4(int x, int y, int z, int w)
{
    return int4{x, y, z, w};
}

struct ShimDim {
    unsigned x, y, z;
};

static thread_local ShimDim gridDim, blockDim, blockIdx, threadIdx;

namespace shim {

inline ShimDim unflatten(unsigned long long index, ShimDim size)
{
    return ShimDim{
        (unsigned)(index % size.x),
        (unsigned)(index / size.x % size.y),
        (unsigned)(index / size.x / size.y),
    };
}

inline unsigned long long volume(ShimDim size)
{
    return (unsigned long long)size.x * size.y * size.z;
}

// Calls a kernel for every thread of the grid, in order or in reverse order. Parameters come as in
// cuLaunchKernel: an array of pointers to the values.
template <typename... P, std::size_t... I>
void run(void (*kernel)(P...), ShimDim grid, ShimDim block, bool reverse, void** parameters,
         std::index_sequence<I...>)
{
    gridDim = grid;
    blockDim = block;
    const unsigned long long blocks = volume(grid);
    const unsigned long long threads = volume(block);
    for (unsigned long long b = 0; b < blocks; ++b) {
        blockIdx = unflatten(reverse ? blocks - 1 - b : b, grid);
        for (unsigned long long t = 0; t < threads; ++t) {
            threadIdx = unflatten(reverse ? threads - 1 - t : t, block);
            kernel(*(typename std::remove_reference<P>::type*)parameters[I]...);
        }
    }
}

template <typename... P>
void launch(void (*kernel)(P...), const unsigned* grid, const unsigned* block, int reverse,
            void** parameters)
{
    run(kernel, ShimDim{grid[0], grid[1], grid[2]}, ShimDim{block[0], block[1], block[2]},
        reverse != 0, parameters, std::index_sequence_for<P...>{});
}

// Writes the size of each parameter, so that a 64-bit argument for an int is noticed.
template <typename... P>
int sizes(void (*)(P...), std::size_t* out, int most)
{
    const std::size_t all[] = {sizeof(P)...};
    for (int i = 0; i < (int)sizeof...(P) && i < most; ++i) {
        out[i] = all[i];
    }
    return (int)sizeof...(P);
}

} // namespace shim

#define SHIM_KERNEL(name)                                                                              \
    extern "C" void launch_##name(const unsigned* grid, const unsigned* block, int reverse, void** p)  \
    {                                                                                                  \
        shim::launch(name, grid, block, reverse, p);                                                   \
    }                                                                                                  \
    extern "C" int sizes_##name(std::size_t* out, int most)                                            \
    {                                                                                                  \
        return shim::sizes(name, out, most);                                                           \
    }
