// Kernel indices for attention, for every cache group of a batch in one launch.
//
// Launched by tandemkv.device.block_offsets.copy_batch_block_offsets. No headers and no framework:
// the same text is compiled by NVRTC and, in the tests, by a C++ compiler.
//
// pages       [tables, rows, (planes,) width]  pages of a row; plane 0 is read, the strides say where
// copy_index  [>= count]                       source row per sequence; outside [0, num_rows): padding
// used        [tables, >= count] or null       entries of a sequence that hold something
// count       [1] or null                      sequences to write; null: the grid says so
// groups      [num_groups, 4]                  table, scale, kv_offset, 0
// destination [num_groups, num_sequences, 2, width]
//
// An entry below first_page, a column at or past the used length and a padding row give `empty` in
// both planes; everything else gives K = scale * page and V = K + kv_offset. Every column of the
// rows below count is written, so a row that shrank leaves no tail. The other rows stay untouched.
//
// The grid is (sequences, groups, column tiles); a thread owns four columns. There is no barrier and
// no atomic: each destination element has exactly one writer.

#define COLUMNS_PER_THREAD 4

__device__ __forceinline__ int key_index(int page, int first_page, int scale, int empty)
{
    return page < first_page ? empty : scale * page;
}

__device__ __forceinline__ int
value_index(int page, int first_page, int scale, int kv_offset, int empty)
{
    return page < first_page ? empty : scale * page + kv_offset;
}

extern "C" __global__ void copy_batch_block_offsets(
    const int* __restrict__ pages,
    const int* __restrict__ copy_index,
    const int* __restrict__ used,
    const int* __restrict__ count,
    const int4* __restrict__ groups,
    int* __restrict__ destination,
    long long table_stride, // elements between two tables of `pages`
    long long row_stride,   // elements between two rows of a table
    long long used_stride,  // elements between two tables of `used`
    int num_rows,
    int num_sequences, // rows of one group of the destination
    int width,
    int first_page,
    int empty)
{
    const int sequence = blockIdx.x;
    const int group = blockIdx.y;
    if (sequence >= num_sequences || (count != nullptr && sequence >= count[0])) {
        return;
    }
    const unsigned first = (blockIdx.z * blockDim.x + threadIdx.x) * COLUMNS_PER_THREAD;
    if (first >= (unsigned)width) {
        return;
    }
    const int column = (int)first;

    const int4 descriptor = groups[group];
    const int scale = descriptor.y;
    const int kv_offset = descriptor.z;

    // A row outside the table is padding. The unsigned comparison covers both ends, so that an index
    // written on the device (a replayed graph) can never read beyond the table.
    const int row = copy_index[sequence];
    int length = 0;
    const int* source = pages;
    if ((unsigned)row < (unsigned)num_rows) {
        source += descriptor.x * table_stride + row * row_stride;
        length = width;
        if (used != nullptr) {
            const int entries = used[descriptor.x * used_stride + sequence];
            length = entries < width ? entries : width;
        }
    }

    int page[COLUMNS_PER_THREAD];
    const bool aligned_source = ((table_stride | row_stride) % COLUMNS_PER_THREAD) == 0
        && ((unsigned long long)pages % sizeof(int4)) == 0;
    if (aligned_source && column + COLUMNS_PER_THREAD <= length) {
        const int4 four = *(const int4*)(source + column);
        page[0] = four.x;
        page[1] = four.y;
        page[2] = four.z;
        page[3] = four.w;
    } else {
        for (int i = 0; i < COLUMNS_PER_THREAD; ++i) {
            page[i] = column + i < length ? source[column + i] : first_page - 1;
        }
    }

    int key[COLUMNS_PER_THREAD];
    int value[COLUMNS_PER_THREAD];
    for (int i = 0; i < COLUMNS_PER_THREAD; ++i) {
        key[i] = key_index(page[i], first_page, scale, empty);
        value[i] = value_index(page[i], first_page, scale, kv_offset, empty);
    }

    int* keys = destination + ((long long)group * num_sequences + sequence) * 2 * width + column;
    int* values = keys + width;
    const bool aligned_destination =
        width % COLUMNS_PER_THREAD == 0 && ((unsigned long long)destination % sizeof(int4)) == 0;
    if (aligned_destination) {
        *(int4*)keys = make_int4(key[0], key[1], key[2], key[3]);
        *(int4*)values = make_int4(value[0], value[1], value[2], value[3]);
    } else {
        for (int i = 0; i < COLUMNS_PER_THREAD && column + i < width; ++i) {
            keys[i] = key[i];
            values[i] = value[i];
        }
    }
}
