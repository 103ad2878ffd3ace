// heap_level.v: a level of a pipelined heap: its nodes, and what an operation does there.
//
// Model: a level has pairs of siblings, a row of SRAM each: of every node its entry and how many
// entries its subtree has. An operation comes from the level above with a row. An insert goes to
// the sibling whose subtree has fewer: the sooner entry stays, the other one goes to the level
// below. A pull takes the sooner sibling up and pulls its successor from below. So each level works
// on another operation, and the operations are four cycles apart.
//
//   cycle  0  the row is read
//          1  entries are compared; what goes up and down is known
//          2  the level below reads, and the level above has what it pulled two cycles later
//          4  the row is written, with what came from below; an operation of this cycle sees it
//
// `sweep` writes zeros, which are empty subtrees.
module heap_level #(
    parameter LEVEL = 0,           // 0 is the root: one node, whose sibling stays empty
    parameter LEVELS = 6,
    parameter KEY_BITS = 96,
    parameter TAG_BITS = 24,
    parameter ROW_BITS = LEVEL < 2 ? 1 : LEVEL - 1,
    parameter NEXT_BITS = LEVEL < 1 ? 1 : LEVEL
) (
    input  wire                         clk,
    input  wire                         rst,
    input  wire                         sweep,
    input  wire [ROW_BITS-1:0]          sweep_row,
    input  wire                         op_valid,
    input  wire                         op_insert,
    input  wire [ROW_BITS-1:0]          op_row,
    input  wire [KEY_BITS+TAG_BITS-1:0] op_entry,
    output reg                          next_valid,
    output reg                          next_insert,
    output reg  [NEXT_BITS-1:0]         next_row,
    output reg  [KEY_BITS+TAG_BITS-1:0] next_entry,
    output reg  [KEY_BITS+TAG_BITS-1:0] fill_entry,  // two cycles after a pull
    input  wire [KEY_BITS+TAG_BITS-1:0] below_entry  // what the level below gave for one
);
    localparam ENTRY = KEY_BITS + TAG_BITS;
    localparam COUNT_BITS = LEVELS - LEVEL;
    localparam NODE = COUNT_BITS + ENTRY;
    localparam ROW = 2 * NODE;
    localparam ROWS = LEVEL < 2 ? 1 : 1 << (LEVEL - 1);

    // ---- the rows: where there are few, flops ------------------------------------------------
    wire                write;
    wire [ROW_BITS-1:0] write_at;
    wire [ROW-1:0]      written;
    wire [ROW-1:0]      found;
    wire [ROW_BITS-1:0] read_at = LEVEL < 2 ? {ROW_BITS{1'b0}} : op_row;
    generate
        if (ROWS == 1) begin : one
            reg [ROW-1:0] row;
            always @(posedge clk)
                if (write)
                    row <= written;
            assign found = row;
        end else if (ROWS <= 8) begin : few
            reg [ROW-1:0] rows [0:ROWS-1];
            always @(posedge clk)
                if (write)
                    rows[write_at] <= written;
            assign found = rows[read_at];
        end else begin : many
            (* ram_style = "block" *)
            reg [ROW-1:0] rows [0:ROWS-1];
            always @(posedge clk)
                if (write)
                    rows[write_at] <= written;
            assign found = rows[read_at];
        end
    endgenerate

    // ---- cycle 1: which sibling, and who stays -----------------------------------------------
    reg                valid_1, insert_1, valid_2, valid_3, valid_4;
    reg [ROW_BITS-1:0] row_1, row_2;
    reg [ENTRY-1:0]    entry_1;
    reg [ROW-1:0]      read_1, made_2;
    reg                side_2, waits_2;  // the node of `side` waits for what comes from below

    wire [NODE-1:0] left  = read_1[NODE-1:0];
    wire [NODE-1:0] right = read_1[ROW-1:NODE];
    wire [COUNT_BITS-1:0] left_count  = left[NODE-1:ENTRY];
    wire [COUNT_BITS-1:0] right_count = right[NODE-1:ENTRY];
    wire side = insert_1 ? LEVEL != 0 && left_count > right_count
        : left_count == 0 || (right_count != 0
            && right[ENTRY-1:TAG_BITS] < left[ENTRY-1:TAG_BITS]);
    wire [COUNT_BITS-1:0] count = side ? right_count : left_count;
    wire [ENTRY-1:0]      entry = side ? right[ENTRY-1:0] : left[ENTRY-1:0];
    wire left_later  = left[ENTRY-1:TAG_BITS] > entry_1[ENTRY-1:TAG_BITS];
    wire right_later = right[ENTRY-1:TAG_BITS] > entry_1[ENTRY-1:TAG_BITS];
    wire stays = count == 0 || (side ? right_later : left_later);
    wire [COUNT_BITS-1:0] count_then = insert_1 ? count + 1'b1 : count - 1'b1;
    // verilator lint_off UNUSEDSIGNAL
    wire [ROW_BITS:0] next_here = {row_1, side};  // of the two upper levels only the side
    // verilator lint_on UNUSEDSIGNAL
    wire [NODE-1:0] node = {count_then, insert_1 && stays ? entry_1 : entry};

    always @(posedge clk) begin
        valid_1 <= op_valid && !rst;
        if (op_valid) begin
            insert_1 <= op_insert;
            row_1    <= read_at;
            entry_1  <= op_entry;
            read_1   <= write && write_at == read_at ? written : found;
        end
        {valid_2, valid_3, valid_4} <= rst ? 3'b0 : {valid_1, valid_2, valid_3};
        next_valid <= valid_1 && !rst && (insert_1 ? count != 0 : count_then != 0);
        if (valid_1) begin
            row_2       <= row_1;
            made_2      <= side ? {node, left} : {right, node};
            side_2      <= side;
            waits_2     <= !insert_1 && count_then != 0;
            next_insert <= insert_1;
            next_row    <= next_here[NEXT_BITS-1:0];
            next_entry  <= stays ? entry : entry_1;
            fill_entry  <= entry;
        end
    end

    // ---- cycle 4: the row is written ---------------------------------------------------------
    wire [ENTRY-1:0] left_then  = waits_2 && !side_2 ? below_entry : made_2[ENTRY-1:0];
    wire [ENTRY-1:0] right_then = waits_2 && side_2 ? below_entry : made_2[NODE +: ENTRY];
    assign write    = sweep || valid_4;
    assign write_at = sweep ? sweep_row : row_2;
    assign written  = sweep ? {ROW{1'b0}}
        : {made_2[ROW-1 -: COUNT_BITS], right_then, made_2[NODE-1 -: COUNT_BITS], left_then};
endmodule
