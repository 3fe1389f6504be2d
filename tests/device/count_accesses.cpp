// Counts the bytes that kernels load from and store to given arrays. The kernels are compiled with calls
// to these functions before each access (-fsanitize=kernel-address, which has no run-time of its own).

#include <cstddef>

namespace {

struct Region {
    const char* start;
    const char* end;
    unsigned long long loaded, stored;
};

Region regions[16];
int num_regions;

#define PLAIN __attribute__((no_sanitize("kernel-address")))

PLAIN void count(const void* address, std::size_t size, bool store)
{
    for (int i = 0; i < num_regions; ++i) {
        if (address >= regions[i].start && address < regions[i].end) {
            (store ? regions[i].stored : regions[i].loaded) += size;
        }
    }
}

} // namespace

extern "C" {

// Starts counting in up to 16 arrays: pairs of start and end.
PLAIN void count_start(const char* const* bounds, int number)
{
    num_regions = number;
    for (int i = 0; i < number; ++i) {
        regions[i] = Region{bounds[2 * i], bounds[2 * i + 1], 0, 0};
    }
}

// Writes pairs of bytes loaded and stored.
PLAIN void count_read(unsigned long long* out)
{
    for (int i = 0; i < num_regions; ++i) {
        out[2 * i] = regions[i].loaded;
        out[2 * i + 1] = regions[i].stored;
    }
}

#define ACCESS(size)                                                                                   \
    PLAIN void __asan_load##size##_noabort(const void* address)                                        \
    {                                                                                                  \
        count(address, size, false);                                                                   \
    }                                                                                                  \
    PLAIN void __asan_store##size##_noabort(const void* address)                                       \
    {                                                                                                  \
        count(address, size, true);                                                                    \
    }

ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

PLAIN void __asan_loadN_noabort(const void* address, std::size_t size)
{
    count(address, size, false);
}

PLAIN void __asan_storeN_noabort(const void* address, std::size_t size)
{
    count(address, size, true);
}

PLAIN void __asan_handle_no_return()
{
}
}
