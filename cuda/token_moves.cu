// The token copies that bring the accepted nodes of draft trees together, in all pools of one role.
//
// Launched by tandemkv.device.token_moves.apply_token_moves. No headers and no framework: the same text
// is compiled by NVRTC and, in the tests, by a C++ compiler.
//
// moves     [num_moves, 5]      class, source page, source offset, destination page, destination
//                               offset; offsets in tokens
// chains    [num_chains + 1]    where each chain's moves begin; the last entry is where they end
// segments  [num_segments, 8]   what a page holds, one segment per buffer of a layer:
//   address of the buffer in page 0, bytes from page to page, bytes from row to row, rows,
//   bytes of one token in a row, tokens of a block, pages, class
//
// The moves of a chain act as if one after the other: one may write what an earlier one read. Each
// thread owns the same 16 bytes of every token and runs the whole chain for them, in order, so no other
// thread's order matters and no barrier is needed. Chains touch nothing of each other. A move outside
// the segment's pages or tokens, or onto the reserved page 0, is not run.
//
// The grid is (chains, segments, tiles).

#define UNIT_BYTES 16
#define SEGMENT_FIELDS 8
#define MOVE_FIELDS 5

extern "C" __global__ void apply_token_moves(
    const int* __restrict__ moves,
    const int* __restrict__ chains,
    const long long* __restrict__ segments,
    int num_moves,
    int num_chains,
    int num_segments)
{
    const unsigned chain = blockIdx.x;
    if (chain >= (unsigned)num_chains || blockIdx.y >= (unsigned)num_segments) {
        return;
    }
    const int first = chains[chain];
    const int end = chains[chain + 1];
    if (first < 0 || end > num_moves) {
        return;
    }
    const long long* segment = segments + (long long)blockIdx.y * SEGMENT_FIELDS;
    const long long page_stride = segment[1];
    const long long row_stride = segment[2];
    const long long token_bytes = segment[4];
    const unsigned units_per_row = (unsigned)((token_bytes + UNIT_BYTES - 1) / UNIT_BYTES);
    const unsigned unit = blockIdx.z * blockDim.x + threadIdx.x;
    const unsigned row = unit / units_per_row;
    if (row >= (unsigned)segment[3]) {
        return;
    }
    const unsigned at = (unit - row * units_per_row) * UNIT_BYTES;
    const unsigned rest = (unsigned)token_bytes - at;
    const bool whole = ((segment[0] | page_stride | row_stride | token_bytes) % UNIT_BYTES) == 0;
    char* mine = (char*)segment[0] + row * row_stride + at;

    for (int number = first; number < end; ++number) {
        const int* move = moves + (long long)number * MOVE_FIELDS;
        if (move[0] != (int)segment[7] || move[1] < 0 || move[1] >= segment[6] || move[2] < 0
            || move[2] >= segment[5] || move[3] < 1 || move[3] >= segment[6] || move[4] < 0
            || move[4] >= segment[5]) {
            continue;
        }
        const char* source = mine + move[1] * page_stride + move[2] * token_bytes;
        char* destination = mine + move[3] * page_stride + move[4] * token_bytes;
        if (whole) {
            *(int4*)destination = *(const int4*)source;
            continue;
        }
        for (unsigned byte = 0; byte < UNIT_BYTES && byte < rest; ++byte) {
            destination[byte] = source[byte];
        }
    }
}
