// What a step changed in the block tables, scattered into the tables that live on the device.
//
// Launched by tandemkv.device.block_offsets.apply_block_table_updates. No headers and no framework:
// the same text is compiled by NVRTC and, in the tests, by a C++ compiler.
//
// records      [num_records, 4]               row, table, column, page; 16-byte aligned
// count        [1] or null                    records that are valid; null: all
// tables       [num_tables, num_rows, width] or null
// row_position [num_rows] or null             where a row stands in the destination; outside
//                                             [0, num_sequences): nowhere; null: at its own number
// groups       [num_groups, 4]                table, scale, kv_offset, 0
// destination  [num_groups, num_sequences, 2, width] or null
//
// An entry below first_page gives `empty` in both planes of the destination, as in
// copy_batch_block_offsets; the table keeps the page as it was recorded. Records of one launch name
// distinct entries (the ledger reports each changed entry once), so each element has at most one
// writer and no order between threads matters. A record outside the tables is not written.

extern "C" __global__ void apply_block_table_updates(
    const int4* __restrict__ records,
    const int* __restrict__ count,
    int* __restrict__ tables,
    const int* __restrict__ row_position,
    const int4* __restrict__ groups,
    int* __restrict__ destination,
    int num_records,
    int num_tables,
    int num_rows,
    int num_groups,
    int num_sequences,
    int width,
    int first_page,
    int empty)
{
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (unsigned)num_records || (count != nullptr && (int)index >= count[0])) {
        return;
    }
    const int4 record = records[index];
    const int row = record.x;
    const int table = record.y;
    const int column = record.z;
    const int page = record.w;
    if ((unsigned)row >= (unsigned)num_rows || (unsigned)table >= (unsigned)num_tables
        || (unsigned)column >= (unsigned)width) {
        return;
    }
    if (tables != nullptr) {
        tables[((long long)table * num_rows + row) * width + column] = page;
    }
    if (destination == nullptr) {
        return;
    }
    const int position = row_position == nullptr ? row : row_position[row];
    if ((unsigned)position >= (unsigned)num_sequences) {
        return;
    }
    for (int group = 0; group < num_groups; ++group) {
        const int4 descriptor = groups[group];
        if (descriptor.x != table) {
            continue;
        }
        const int key = page < first_page ? empty : descriptor.y * page;
        const int value = page < first_page ? empty : descriptor.y * page + descriptor.z;
        int* keys =
            destination + ((long long)group * num_sequences + position) * 2 * width + column;
        keys[0] = key;
        keys[width] = value;
    }
}
