// metadata_lookup.v: the pipeline that looks up block keys in the metadata SRAM.
//
// Model: a set-associative store of keys in one SRAM, a row for each set. A lookup reads its row,
// reports hit or miss, and writes the row back with the key in it; a new key replaces the least
// recently used of its set. One lookup may begin in each cycle, whatever the keys are: the row made
// by the lookup before is forwarded where both use the same set. The pipeline never stalls: a
// lookup begins only with a credit, which is room in the output queue, and returns it when its
// answer is taken. Keys that cannot begin wait in the input queue; when that is full the ports are not ready.
// There are two ports, because two commands may arrive in one cycle; port 0 is first.
//
//
//   cycle  0  the handshake at a port; with nothing waiting, the lookup begins
//       1, 2  key * G                 \
//       3, 4  (x ^ x >> 30) * C1       |  SplitMix64's finalizer (Steele, Lea, Flood 2014)
//       5, 6  (x ^ x >> 27) * C2      /   low bits of x ^ x >> 31 are the set
//          7  the SRAM is read
//          8  keys compared, the new row written
//          9  the answer is out, or queued behind earlier answers
//
// A multiplication takes two cycles: rows of one bit each to two (times_constant.v), then their sum.
//
// A row holds for each way: rank of its last use (0: the last one), valid, key. Ranks are stored as
// their difference (xor) from the order of the ways, so that a row of zeros is an empty set whose
// ways are used from way 0 on. After reset a sweep writes zeros to every row, one per cycle.
module metadata_lookup #(
    parameter SET_BITS = 6,
    parameter WAY_BITS = 2,
    parameter ID_BITS = 32,
    parameter QUEUE_BITS = 3,   // 2^QUEUE_BITS keys may wait
    parameter CREDIT_BITS = 4   // 2^CREDIT_BITS lookups may be begun and not taken
) (
    input  wire               clk,
    input  wire               rst,
    input  wire [1:0]         in_valid,
    output wire [1:0]         in_ready,
    input  wire [63:0]        in_key_0,
    input  wire [63:0]        in_key_1,
    input  wire [ID_BITS-1:0] in_id_0,
    input  wire [ID_BITS-1:0] in_id_1,
    output wire               out_valid,
    input  wire               out_ready,
    output wire               out_hit,
    output wire               out_evicts,
    output wire [ID_BITS-1:0] out_id
);
    localparam QUEUE = 1 << QUEUE_BITS;
    localparam CREDITS = 1 << CREDIT_BITS;
    localparam SETS = 1 << SET_BITS;
    localparam WAYS = 1 << WAY_BITS;
    localparam WAY_WIDTH = WAY_BITS + 1 + 64;
    localparam ROW = WAYS * WAY_WIDTH;
    localparam [63:0] G  = 64'h9e3779b97f4a7c15;
    localparam [63:0] C1 = 64'hbf58476d1ce4e5b9;
    localparam [63:0] C2 = 64'h94d049bb133111eb;

    // ---- which key begins: queued ones first, and with a credit -----------------------------
    reg [63:0]           queue_key [0:QUEUE-1];
    reg [ID_BITS-1:0]    queue_id  [0:QUEUE-1];
    reg [QUEUE_BITS-1:0] queue_head;
    reg [QUEUE_BITS:0]   queue_count;
    reg [CREDIT_BITS:0]  begun;    // and not taken
    reg [SET_BITS:0]     swept;    // rows that the sweep has written

    wire running   = swept[SET_BITS];
    wire taken     = out_valid && out_ready;
    wire can_begin = running && (!begun[CREDIT_BITS] || taken);
    wire is_empty  = queue_count == 0;
    wire pass      = can_begin && is_empty;
    wire pass_0    = pass && in_valid[0];
    wire pass_1    = pass && !in_valid[0] && in_valid[1];
    wire pop       = can_begin && !is_empty;
    wire begins    = pop || pass_0 || pass_1;
    wire [QUEUE_BITS:0] room = QUEUE[QUEUE_BITS:0] - queue_count + {{QUEUE_BITS{1'b0}}, pop};
    wire ready_0   = running && (pass || room != 0);
    wire store_0   = in_valid[0] && ready_0 && !pass_0;
    wire ready_1   = running && (!in_valid[0] || ready_0)
        && (pass_1 || room != {{QUEUE_BITS{1'b0}}, store_0});
    wire store_1   = in_valid[1] && ready_1 && !pass_1;
    assign in_ready = {ready_1, ready_0};
    wire [QUEUE_BITS-1:0] tail = queue_head + queue_count[QUEUE_BITS-1:0];
    wire [QUEUE_BITS-1:0] tail_1 = tail + {{(QUEUE_BITS-1){1'b0}}, store_0};
    wire [63:0]        key = pop ? queue_key[queue_head] : pass_0 ? in_key_0 : in_key_1;
    wire [ID_BITS-1:0] id  = pop ? queue_id[queue_head] : pass_0 ? in_id_0 : in_id_1;

    always @(posedge clk) begin
        if (store_0) begin
            queue_key[tail] <= in_key_0;
            queue_id[tail]  <= in_id_0;
        end
        if (store_1) begin
            queue_key[tail_1] <= in_key_1;
            queue_id[tail_1]  <= in_id_1;
        end
        if (rst) begin
            queue_head  <= 0;
            queue_count <= 0;
            begun       <= 0;
        end else begin
            queue_head  <= queue_head + {{(QUEUE_BITS-1){1'b0}}, pop};
            queue_count <= queue_count - {{QUEUE_BITS{1'b0}}, pop}
                + {{QUEUE_BITS{1'b0}}, store_0} + {{QUEUE_BITS{1'b0}}, store_1};
            begun <= begun + {{CREDIT_BITS{1'b0}}, begins} - {{CREDIT_BITS{1'b0}}, taken};
        end
    end

    // ---- cycles 1 to 7: which set ---------------------------------------------------------------
    localparam READ = 7;         // the cycle in which the SRAM is read; keys are compared in the next
    reg               valid [1:READ+1];
    reg [ID_BITS-1:0] ids   [1:READ+1];
    reg [63:0]        keys  [1:READ+1];
    reg [63:0]        hash_1, sum_2, carry_2, hash_3, sum_4, carry_4, hash_5, sum_6, carry_6;
    // verilator lint_off UNUSEDSIGNAL
    reg [63:0]        hash_7;    // of which the set is some bits
    // verilator lint_on UNUSEDSIGNAL
    wire [63:0]       sum_1, carry_1, sum_3, carry_3, sum_5, carry_5;
    wire [SET_BITS-1:0] set_7 = hash_7[SET_BITS-1:0] ^ hash_7[31 +: SET_BITS];
    reg [SET_BITS-1:0]  set_8;
    integer stage;

    times_constant #(.CONSTANT(G)) by_g (.key(hash_1), .sum(sum_1), .carry(carry_1));
    times_constant #(.CONSTANT(C1)) by_c1 (
        .key(hash_3 ^ (hash_3 >> 30)), .sum(sum_3), .carry(carry_3));
    times_constant #(.CONSTANT(C2)) by_c2 (
        .key(hash_5 ^ (hash_5 >> 27)), .sum(sum_5), .carry(carry_5));

    always @(posedge clk) begin
        hash_1 <= key;
        {sum_2, carry_2} <= {sum_1, carry_1};
        hash_3 <= sum_2 + carry_2;
        {sum_4, carry_4} <= {sum_3, carry_3};
        hash_5 <= sum_4 + carry_4;
        {sum_6, carry_6} <= {sum_5, carry_5};
        hash_7 <= sum_6 + carry_6;
        set_8  <= set_7;
        for (stage = 1; stage <= READ + 1; stage = stage + 1) begin
            valid[stage] <= !rst && (stage == 1 ? begins : valid[stage > 1 ? stage - 1 : 1]);
            ids[stage]   <= stage == 1 ? id : ids[stage > 1 ? stage - 1 : 1];
            keys[stage]  <= stage == 1 ? key : keys[stage > 1 ? stage - 1 : 1];
        end
    end
    wire               valid_8 = valid[READ+1];
    wire [ID_BITS-1:0] id_8    = ids[READ+1];
    wire [63:0]        key_8   = keys[READ+1];

    // ---- cycles 7 and 8: the row is read, compared, written back ----------------------------
    (* ram_style = "block" *)
    reg [ROW-1:0] rows [0:SETS-1];
    reg [ROW-1:0] row_read;      // from the SRAM: before a write of the same cycle
    reg [ROW-1:0] row_made;      // by the lookup before
    reg           made_forwards; // and that lookup used the same set
    wire [ROW-1:0] row_8 = made_forwards ? row_made : row_read;
    reg  [ROW-1:0] row_next;
    reg            hit_8, evicts_8;
    reg [WAY_BITS-1:0] used_rank; // old rank of the way used now
    integer way;

    always @* begin : compare
        reg [WAY_BITS-1:0] rank, order;
        hit_8     = 0;
        evicts_8  = 0;
        used_rank = {WAY_BITS{1'b1}};
        for (way = 0; way < WAYS; way = way + 1) begin
            order = ~way[WAY_BITS-1:0];
            rank  = row_8[way*WAY_WIDTH+65 +: WAY_BITS] ^ order;
            if (row_8[way*WAY_WIDTH+64] && row_8[way*WAY_WIDTH +: 64] == key_8) begin
                hit_8     = 1;
                used_rank = rank;
            end
            if (rank == {WAY_BITS{1'b1}})
                evicts_8 = row_8[way*WAY_WIDTH+64];
        end
        evicts_8 = evicts_8 && !hit_8;
        row_next = row_8;
        for (way = 0; way < WAYS; way = way + 1) begin
            order = ~way[WAY_BITS-1:0];
            rank  = row_8[way*WAY_WIDTH+65 +: WAY_BITS] ^ order;
            if (rank == used_rank)
                row_next[way*WAY_WIDTH +: WAY_WIDTH] = {order, 1'b1, key_8};
            else if (rank < used_rank)
                row_next[way*WAY_WIDTH+65 +: WAY_BITS] = (rank + 1'b1) ^ order;
        end
    end

    always @(posedge clk) begin
        row_read      <= rows[set_7];
        row_made      <= row_next;
        made_forwards <= valid_8 && set_7 == set_8;
        if (!running)
            rows[swept[SET_BITS-1:0]] <= 0;
        else if (valid_8)
            rows[set_8] <= row_next;
        if (rst)
            swept <= 0;
        else if (!running)
            swept <= swept + 1'b1;
    end

    // ---- cycle 9 and later: the queue of answers ---------------------------------------------
    reg [ID_BITS+1:0]     answers [0:CREDITS-1];
    reg [CREDIT_BITS-1:0] answer_head;
    reg [CREDIT_BITS:0]   answer_count;
    wire [CREDIT_BITS-1:0] answer_tail = answer_head + answer_count[CREDIT_BITS-1:0];

    assign out_valid = answer_count != 0;
    assign {out_hit, out_evicts, out_id} = answers[answer_head];

    always @(posedge clk) begin
        if (valid_8)
            answers[answer_tail] <= {hit_8, evicts_8, id_8};
        if (rst) begin
            answer_head  <= 0;
            answer_count <= 0;
        end else begin
            answer_head  <= answer_head + {{(CREDIT_BITS-1){1'b0}}, taken};
            answer_count <= answer_count + {{CREDIT_BITS{1'b0}}, valid_8}
                - {{CREDIT_BITS{1'b0}}, taken};
        end
    end
endmodule
