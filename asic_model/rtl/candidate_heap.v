// candidate_heap.v: the prefetch scheduler's candidates of a tenant, the most urgent one first.
//
// Model: a put adds a candidate, a take removes the first one: by deadline, then by probability,
// then by age, which is the order of the decision core (queue.c). Both come through one queue,
// takes ahead of puts (channel_queue.v), and every four cycles one begins. A put that finds the
// heap full is refused, and so is a take that finds it empty. A candidate whose deadline has passed
// is marked late when it is taken: the receiver drops it and takes again. The heap is a pipeline, a
// level of SRAM for each stage (heap_level.v; Bhagwan and Lin, "Fast and scalable priority queue
// architecture for high-speed network switches", 2000).
//
//   cycle  0  the operation begins
//          1  room is checked; the root is read
//          2  the root is compared
//          3  the answer is out; the levels below work on
//
// Not in hardware: replacing or cancelling a candidate in the middle. The receiver of a take knows
// the block and its layer's step, and drops what is superseded. Time is counted in cycles from
// reset. After reset a sweep empties all levels, one row a cycle.
//
// Proved (test_formal.py): no entry that stays is sooner than the one that is taken.
module candidate_heap #(
    parameter LEVELS = 6,          // 2^LEVELS - 1 candidates, 2 levels or more
    parameter QUEUE_BITS = 2,      // 2^QUEUE_BITS operations wait
    parameter TIME_BITS = 32,
    parameter CHANCE_BITS = 16,
    parameter AGE_BITS = 48,
    parameter TAG_BITS = 24
) (
    input  wire                   clk,
    input  wire                   rst,
    input  wire                   in_valid,
    output wire                   in_ready,
    input  wire                   in_take,     // else a put
    input  wire [TIME_BITS-1:0]   in_deadline,
    input  wire [CHANCE_BITS-1:0] in_chance,
    input  wire [TAG_BITS-1:0]    in_tag,
    output wire                   begins,      // an operation, in this cycle
    output reg                    out_valid,   // three cycles later
    output reg                    out_take,
    output reg                    out_refused,
    output wire                   out_late,
    output wire [TAG_BITS-1:0]    out_tag
);
    localparam KEY_BITS = TIME_BITS + CHANCE_BITS + AGE_BITS;
    localparam ENTRY = KEY_BITS + TAG_BITS;
    localparam ASKED = 1 + TIME_BITS + CHANCE_BITS + TAG_BITS;

    // ---- which operation begins --------------------------------------------------------------
    reg  [LEVELS-2:0] swept;       // rows, all levels at once; a bit more than the last one has
    wire              running = swept[LEVELS-2];
    wire              is_ready;
    wire [ASKED-1:0]  asked;
    reg               op_valid;
    assign in_ready = is_ready && running;

    channel_queue #(
        .QUEUE_BITS(QUEUE_BITS), .CREDITS(2), .CREDIT_BITS(2), .CYCLES_BITS(3), .TAG_BITS(ASKED)
    ) queue (
        .clk(clk), .rst(rst), .in_valid(in_valid && running), .in_ready(is_ready),
        .in_urgent(in_take), .in_cycles(3'd4), .in_tag({in_take, in_deadline, in_chance, in_tag}),
        .begins(begins), .begins_tag(asked), .credit_back(op_valid));

    // ---- cycle 1: is there room, or a candidate? ---------------------------------------------
    reg                   op_take;
    reg [TIME_BITS-1:0]   op_deadline;
    reg [CHANCE_BITS-1:0] op_chance;
    reg [TAG_BITS-1:0]    op_tag;
    reg [LEVELS-1:0]      count;
    reg [AGE_BITS-1:0]    age;
    wire refused = op_take ? count == 0 : &count;
    wire enters  = op_valid && !refused;

    always @(posedge clk) begin
        op_valid <= begins && !rst;
        {op_take, op_deadline, op_chance, op_tag} <= asked;
        if (rst) begin
            swept <= 0;
            count <= 0;
            age   <= 0;
        end else begin
            if (!running)
                swept <= swept + 1'b1;
            if (enters)
                count <= op_take ? count - 1'b1 : count + 1'b1;
            if (enters && !op_take)
                age <= age + 1'b1;
        end
    end

    // ---- the levels --------------------------------------------------------------------------
    genvar l;
    generate
        for (l = 0; l < LEVELS; l = l + 1) begin : level
            localparam ROW_BITS = l < 2 ? 1 : l - 1;
            localparam NEXT_BITS = l < 1 ? 1 : l;
            wire                 in_op, in_insert;
            wire [ROW_BITS-1:0]  in_row;
            wire [ENTRY-1:0]     in_entry, fill_entry, below_entry;
            // verilator lint_off UNUSEDSIGNAL
            wire                 next_valid, next_insert;  // of the last level, nobody's
            wire [NEXT_BITS-1:0] next_row;
            wire [ENTRY-1:0]     next_entry;
            // verilator lint_on UNUSEDSIGNAL

            if (l == 0) begin : root
                assign {in_op, in_insert, in_row} = {enters, !op_take, 1'b0};
                assign in_entry = {op_deadline, ~op_chance, age, op_tag};
            end else begin : inner
                assign {in_op, in_insert, in_row} =
                    {level[l-1].next_valid, level[l-1].next_insert, level[l-1].next_row};
                assign in_entry = level[l-1].next_entry;
            end
            if (l == LEVELS - 1) begin : last
                assign below_entry = 0;
            end else begin : above
                assign below_entry = level[l+1].fill_entry;
            end
            heap_level #(
                .LEVEL(l), .LEVELS(LEVELS), .KEY_BITS(KEY_BITS), .TAG_BITS(TAG_BITS)
            ) nodes (
                .clk(clk), .rst(rst), .sweep(!running), .sweep_row(swept[ROW_BITS-1:0]),
                .op_valid(in_op), .op_insert(in_insert), .op_row(in_row), .op_entry(in_entry),
                .next_valid(next_valid), .next_insert(next_insert), .next_row(next_row),
                .next_entry(next_entry), .fill_entry(fill_entry), .below_entry(below_entry));
        end
    endgenerate

    // ---- cycle 3: the answer -----------------------------------------------------------------
    reg                 valid_2, take_2, refused_2;
    reg [TIME_BITS-1:0] now;
    // verilator lint_off UNUSEDSIGNAL
    wire [ENTRY-1:0]    first = level[0].fill_entry;
    // verilator lint_on UNUSEDSIGNAL

    always @(posedge clk) begin
        now       <= rst ? 0 : now + 1'b1;
        valid_2   <= op_valid && !rst;
        out_valid <= valid_2 && !rst;
        {take_2, refused_2}     <= {op_take, refused};
        {out_take, out_refused} <= {take_2, refused_2};
    end
    assign out_tag  = first[TAG_BITS-1:0];
    assign out_late = first[ENTRY-1 -: TIME_BITS] < now;

`ifdef FORMAL
    // One candidate, any: where it is told by its age.
    (* anyconst *) reg [AGE_BITS-1:0] which;
    reg started = 0, waits = 0;        // it was put and not taken
    reg [KEY_BITS-1:0] its_key = 0;
    wire puts  = enters && !op_take;
    wire taken = out_valid && out_take && !out_refused;

    always @(posedge clk) begin
        started <= 1;
        if (rst)
            waits <= 0;
        else if (puts && age == which) begin
            waits   <= 1;
            its_key <= {op_deadline, ~op_chance, age};
        end else if (taken && first[TAG_BITS +: AGE_BITS] == which)
            waits <= 0;
    end

    always @* begin
        assume (rst == !started);
        assume (!(&age));                                   // ages do not come again
        if (started && taken && waits)
            assert (first[ENTRY-1:TAG_BITS] <= its_key);    // none that stays is sooner
        if (started && taken && first[TAG_BITS +: AGE_BITS] == which)
            assert (waits && first[ENTRY-1:TAG_BITS] == its_key);
    end
`endif
endmodule
