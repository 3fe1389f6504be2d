// The page copies that the ledger queued, run in the pools of all roles in one launch.
//
// Launched by tandemkv.device.page_moves.apply_page_moves. No headers and no framework: the same text
// is compiled by NVRTC and, in the tests, by a C++ compiler.
//
// moves     [num_moves, 4]      class, source page, destination page, tokens; 16-byte aligned
// count     [1] or null         moves that are valid; null: all
// segments  [num_segments, 8]   what a page holds, one segment per buffer of a layer:
//   address of the buffer in page 0, bytes from page to page, bytes from row to row, rows,
//   bytes of one token in a row, tokens of a block, pages, class
//
// Of every row the first `tokens` tokens are copied: a layout with tokens first has one row per
// buffer, one with heads first a row per head. A move outside the segment's pages or tokens, or onto
// the reserved page 0, is not run. Moves of one launch neither write a page twice nor read one that
// another writes, so no order between threads matters and no barrier is needed.
//
// The grid is (moves, segments, tiles); a thread copies four units of 16 bytes, and loads all of them
// before it stores, so that they are in flight together.

#define UNIT_BYTES 16
#define UNITS_PER_THREAD 4
#define SEGMENT_FIELDS 8

extern "C" __global__ void apply_page_moves(
    const int4* __restrict__ moves,
    const int* __restrict__ count,
    const long long* __restrict__ segments,
    int num_moves,
    int num_segments)
{
    const unsigned number = blockIdx.x;
    if (number >= (unsigned)num_moves || blockIdx.y >= (unsigned)num_segments
        || (count != nullptr && (int)number >= count[0])) {
        return;
    }
    const long long* segment = segments + (long long)blockIdx.y * SEGMENT_FIELDS;
    const int4 move = moves[number];
    const int tokens = move.w;
    if (move.x != (int)segment[7] || move.y < 0 || move.y >= segment[6] || move.z < 1
        || move.z >= segment[6] || tokens < 1 || tokens > segment[5]) {
        return;
    }
    const long long page_stride = segment[1];
    const long long row_stride = segment[2];
    const unsigned num_rows = (unsigned)segment[3];
    const unsigned run_bytes = (unsigned)tokens * (unsigned)segment[4];
    const char* source = (const char*)segment[0] + move.y * page_stride;
    char* destination = (char*)segment[0] + move.z * page_stride;

    const unsigned units_per_row = (run_bytes + UNIT_BYTES - 1) / UNIT_BYTES;
    const unsigned num_units = units_per_row * num_rows;
    const bool aligned = ((segment[0] | page_stride | row_stride) % UNIT_BYTES) == 0;

    const unsigned first = blockIdx.z * (blockDim.x * UNITS_PER_THREAD) + threadIdx.x;
    int4 loaded[UNITS_PER_THREAD];
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        const unsigned unit = first + i * blockDim.x;
        const unsigned row = unit / units_per_row;
        const unsigned at = (unit - row * units_per_row) * UNIT_BYTES;
        if (unit < num_units && aligned && at + UNIT_BYTES <= run_bytes) {
            loaded[i] = *(const int4*)(source + row * row_stride + at);
        }
    }
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        const unsigned unit = first + i * blockDim.x;
        if (unit >= num_units) {
            return;
        }
        const unsigned row = unit / units_per_row;
        const unsigned at = (unit - row * units_per_row) * UNIT_BYTES;
        const long long offset = row * row_stride + at;
        if (aligned && at + UNIT_BYTES <= run_bytes) {
            *(int4*)(destination + offset) = loaded[i];
            continue;
        }
        // The end of a run, and every unit of a layout without 16-byte alignment.
        const unsigned rest = run_bytes - at;
        for (unsigned byte = 0; byte < UNIT_BYTES && byte < rest; ++byte) {
            destination[offset + byte] = source[offset + byte];
        }
    }
}
