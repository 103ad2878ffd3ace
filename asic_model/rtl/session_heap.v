// session_heap.v: the waiting entries of all sessions, a heap for each, in one SRAM of rows.
//
// Model: a heap is a tree of positions. A position has a number, an entry, and how many entries its
// subtree has; the row of its number has both of its children. An insert takes the way to the child
// with fewer entries: the sooner entry stays, the later one goes on, to a new position at the end. So
// no heap is deeper than it would be if it had never lost an entry. A pull takes the sooner child's
// entry up, and fills its place from below; the last position on the way is freed. The first entry of
// a session is not here: the caller has it, with its position and count. Two cycles a level, and two
// walkers: operations begin an odd number of cycles apart, so that one reads while the other compares.
//
//   cycle  0  start: the row of the first position is read
//          1  its children are compared; of a pull, up_entry is the caller's new first entry
//   2, 3 ...  the next level
//
// The caller never starts a walker that has not ended: 2 * LEVELS + 2 cycles are enough.
module session_heap #(
    parameter ID_BITS = 6,
    parameter IDS = 34,
    parameter COUNT_BITS = 4,
    parameter ENTRY = 128,
    parameter TAIL_BITS = 48       // of an entry, what is below its key
) (
    input  wire                  clk,
    input  wire                  rst,
    input  wire                  start,
    input  wire                  start_pull,     // else an insert
    input  wire [ID_BITS-1:0]    start_at,       // the position whose entry has left, or stays
    input  wire [COUNT_BITS-1:0] start_count,    // entries of its subtree, before
    input  wire [ENTRY-1:0]      start_entry,    // of an insert: what goes below it,
    input  wire [ID_BITS-1:0]    start_new,      // and the number of its position
    output wire [ENTRY-1:0]      up_entry,
    output wire                  freed,
    output wire [ID_BITS-1:0]    freed_id
);
    localparam NODE = COUNT_BITS + ID_BITS + ENTRY;
    localparam ROW = 2 * NODE;

    // ---- the rows: one port reads, one writes ------------------------------------------------
    (* ram_style = "block" *)
    reg  [ROW-1:0]     rows [0:IDS-1];
    reg  [ROW-1:0]     row;
    reg                turn;                     // the walker that starts next
    wire [1:0]         writes, frees;
    wire [ID_BITS-1:0] read_at [0:1], write_at [0:1], free_id [0:1];
    wire [ROW-1:0]     written [0:1];
    wire [ENTRY-1:0]   ups [0:1];
    wire               reads_1 = walker[1].busy && !walker[1].compares;

    always @(posedge clk) begin
        row <= rows[start ? start_at : reads_1 ? read_at[1] : read_at[0]];
        if (writes != 0)
            rows[writes[1] ? write_at[1] : write_at[0]] <= writes[1] ? written[1] : written[0];
        turn <= rst ? 1'b0 : turn ^ start;
    end
    assign freed    = frees != 0;
    assign freed_id = frees[1] ? free_id[1] : free_id[0];
    assign up_entry = turn ? ups[0] : ups[1];    // of the walker that started last

    genvar w;
    generate
        for (w = 0; w < 2; w = w + 1) begin : walker
            reg                  busy, compares, pull, holds, last;
            reg [ID_BITS-1:0]    at, new_id, held_at;
            reg [COUNT_BITS-1:0] count;
            reg [ENTRY-1:0]      entry;
            reg [ROW-1:0]        held;           // of a pull: written when its hole is filled
            reg                  held_side;

            wire [ROW-1:0]  here = !pull && count == 1 ? {ROW{1'b0}} : row;
            wire [NODE-1:0] left = here[NODE-1:0], right = here[ROW-1:NODE];
            wire [COUNT_BITS-1:0] left_count  = left[NODE-1 -: COUNT_BITS];
            wire [COUNT_BITS-1:0] right_count = right[NODE-1 -: COUNT_BITS];
            wire side = pull
                ? left_count == 0 || (right_count != 0
                    && right[ENTRY-1:TAIL_BITS] < left[ENTRY-1:TAIL_BITS])
                : right_count < left_count;
            wire [NODE-1:0]       child       = side ? right : left;
            wire [COUNT_BITS-1:0] child_count = child[NODE-1 -: COUNT_BITS];
            wire [ID_BITS-1:0]    child_id    = child[ENTRY +: ID_BITS];
            wire [ENTRY-1:0]      child_entry = child[ENTRY-1:0];
            wire ends  = pull ? child_count == 1 : child_count == 0;
            wire comes = child_count == 0 || entry[ENTRY-1:TAIL_BITS] < child_entry[ENTRY-1:TAIL_BITS];
            wire [NODE-1:0] child_then = {
                pull ? child_count - 1'b1 : child_count + 1'b1,
                !pull && ends ? new_id : child_id,
                !pull && comes ? entry : child_entry};
            wire [ROW-1:0] then = side ? {child_then, left} : {right, child_then};
            wire [ROW-1:0] filled = last ? held
                : held_side ? {held[ROW-1 -: NODE-ENTRY], child_entry, held[NODE-1:0]}
                : {held[ROW-1:NODE], held[NODE-1 -: NODE-ENTRY], child_entry};

            assign read_at[w]  = at;
            assign writes[w]   = busy && compares && (!pull || holds);
            assign write_at[w] = pull ? held_at : at;
            assign written[w]  = pull ? filled : then;
            assign ups[w]      = child_entry;
            assign frees[w]    = busy && compares && pull && !last && ends;
            assign free_id[w]  = child_id;

            always @(posedge clk)
                if (start && turn == w[0]) begin
                    {busy, compares, holds, last} <= 4'b1100;
                    {pull, at, new_id} <= {start_pull, start_at, start_new};
                    {count, entry}     <= {start_count, start_entry};
                end else begin
                    compares <= !compares;
                    if (rst || (busy && compares && (last || (!pull && ends))))
                        busy <= 0;
                    if (busy && compares) begin
                        {at, count} <= {child_id, child_count};
                        entry       <= comes ? child_entry : entry;
                        {held, held_at, held_side} <= {then, at, side};
                        {holds, last}              <= {1'b1, ends};
                    end
                end
        end
    endgenerate
endmodule
