// candidate_compare.v: the prefetch scheduler's comparators: which blocks of a command's scores become
// candidates.
//
// Model: a command brings the scores of a layer's blocks in order, LANES in a beat. Each lane moves
// its block's average by the score, as the decision core does (prefetch_ema.c), and compares it with
// the cut. What reaches it, or is selected by rule, and is stored and not staged, goes on, one block
// a cycle: the chance of a demand that its class has is looked up, and where that is enough the block
// enters a row of the best, sorted by chance, then by average, then by order (prefetch.c). So a beat
// occupies the lanes for as many cycles as it has such blocks, one at least. After the last beat the
// row's blocks come out, the best first, for the heap (candidate_heap.v); one that the session has
// queued already stays there, and only uses its place in the row.
//
//   cycle   0  a beat is taken
//           1  the averages are out; the first of its blocks is picked
//           2  its chance is looked up
//           3  it enters the row
//   4 at least  after the last beat: the row's first block is out, then one in each cycle
//
// Not in hardware: who sets the cut, the shift and the chances. The cut is the average at which the
// chance is enough, or a higher one that leaves out all but the core's rank; `out_above` says how many
// averages reached it. A second turn with the averages as scores leaves them as they are.
module candidate_compare #(
    parameter LANES = 4,
    parameter CELLS = 4,           // 2 or more: the most candidates of a command
    parameter COUNT_BITS = 3,      // CELLS < 2^COUNT_BITS
    parameter ORDINAL_BITS = 20
) (
    input  wire                    clk,
    input  wire                    rst,
    // a command: what holds for all of its beats
    input  wire                    start_valid,
    output wire                    start_ready,
    input  wire [3:0]              start_shift,
    input  wire [16:0]             start_cut,
    input  wire [15:0]             start_enough,  // the least chance
    input  wire [COUNT_BITS-1:0]   start_room,    // candidates, CELLS at most
    input  wire [65*16-1:0]        start_chances, // by class: 64 levels of the average, by rule
    // its beats
    input  wire                    in_valid,
    output wire                    in_ready,
    input  wire                    in_last,
    input  wire [LANES*16-1:0]     in_scores,
    input  wire [LANES*16-1:0]     in_averages,
    input  wire [LANES-1:0]        in_known,      // it has an average; else the score is the first one
    input  wire [LANES-1:0]        in_absent,     // it is stored, and not staged
    input  wire [LANES-1:0]        in_queued,     // by this session, and not superseded
    input  wire [LANES-1:0]        in_by_rule,    // a sink, or of the window
    output reg                     averages_valid,
    output wire [LANES*16-1:0]     out_averages,
    // its candidates, until out_done
    output wire                    out_valid,
    input  wire                    out_ready,
    output wire [ORDINAL_BITS-1:0] out_ordinal,
    output wire [15:0]             out_chance,
    output wire                    out_done,
    output reg  [ORDINAL_BITS-1:0] out_above
);
    localparam ENTRY = 32 + ORDINAL_BITS + 1;  // chance and average, ordinal, queued
    localparam LANE_BITS = $clog2(LANES);

    // ---- the command -------------------------------------------------------------------------
    localparam [1:0] IDLE = 0, TAKES = 1, FLUSHES = 2, DRAINS = 3;
    reg  [1:0]            state;
    reg  [3:0]            shift;
    reg  [16:0]           cut;
    reg  [15:0]           enough;
    reg  [COUNT_BITS-1:0] room;
    reg  [65*16-1:0]      chances;
    wire                  takes = in_valid && in_ready;
    wire                  flushed;

    assign start_ready = state == IDLE && !rst;
    always @(posedge clk)
        if (rst)
            state <= IDLE;
        else
            case (state)
                IDLE:    if (start_valid) state <= TAKES;
                TAKES:   if (takes && in_last) state <= FLUSHES;
                FLUSHES: if (flushed) state <= DRAINS;
                default: if (out_done) state <= IDLE;
            endcase

    always @(posedge clk)
        if (start_ready && start_valid)
            {shift, cut, enough, room, chances} <=
                {start_shift, start_cut, start_enough, start_room, start_chances};

    // ---- cycle 0: the lanes ------------------------------------------------------------------
    wire [LANES-1:0]      reaches, passes;
    wire [LANES*16-1:0]   averages_next;
    reg  [LANES*16-1:0]   averages;
    reg  [LANES-1:0]      left, queued, by_rule;  // left: its blocks that were not picked
    reg  [LANES-1:0]      reached;
    reg  [ORDINAL_BITS-LANE_BITS-1:0] beat, beat_next;
    reg  [LANE_BITS:0]    reached_count;
    wire [LANES-1:0]      rest = left & (left - 1'b1);
    integer               i;

    assign in_ready     = state == TAKES && rest == 0;
    assign out_averages = averages;

    genvar l;
    generate
        for (l = 0; l < LANES; l = l + 1) begin : lane
            wire [15:0] score = in_scores[l*16 +: 16];
            wire [15:0] old   = in_averages[l*16 +: 16];
            wire [15:0] moved = old - (old >> shift) + (score >> shift);
            wire [15:0] next  = in_known[l] ? moved : score;
            assign averages_next[l*16 +: 16] = next;
            assign reaches[l] = {1'b0, next} >= cut;
            assign passes[l]  = in_absent[l] && (reaches[l] || in_by_rule[l]);
        end
    endgenerate

    always @* begin
        reached_count = 0;
        for (i = 0; i < LANES; i = i + 1)
            reached_count = reached_count + {{LANE_BITS{1'b0}}, reached[i]};
    end

    always @(posedge clk) begin
        averages_valid <= takes && !rst;
        if (takes) begin
            averages <= averages_next;
            queued   <= in_queued;
            by_rule  <= in_by_rule;
            beat     <= beat_next;
        end
        left <= rst ? {LANES{1'b0}} : takes ? passes : rest;
        reached <= takes ? reaches : {LANES{1'b0}};
        if (start_ready) begin
            beat_next <= 0;
            out_above <= 0;
        end else begin
            beat_next <= beat_next + {{(ORDINAL_BITS-LANE_BITS-1){1'b0}}, takes};
            out_above <= out_above + {{(ORDINAL_BITS-LANE_BITS-1){1'b0}}, reached_count};
        end
    end

    // ---- cycle 1: one of its blocks is picked, the first -------------------------------------
    reg  [LANE_BITS-1:0] which;
    reg                  pick_valid, pick_queued, pick_by_rule;
    reg  [15:0]          pick_average;
    reg  [ORDINAL_BITS-1:0] pick_ordinal;

    always @* begin
        which = 0;
        for (i = LANES - 1; i >= 0; i = i - 1)
            if (left[i])
                which = i[LANE_BITS-1:0];
    end

    always @(posedge clk) begin
        pick_valid   <= left != 0 && !rst;
        pick_queued  <= queued[which];
        pick_by_rule <= by_rule[which];
        pick_average <= averages[which*16 +: 16];
        pick_ordinal <= {beat, which};
    end

    // ---- cycle 2: its chance -----------------------------------------------------------------
    reg                  found_valid;
    reg  [ENTRY-1:0]     found;
    wire [6:0]           class_of = pick_by_rule ? 7'd64 : {1'b0, pick_average[15:10]};
    wire [15:0]          chance = chances[class_of*16 +: 16];

    always @(posedge clk) begin
        found_valid <= pick_valid && chance >= enough && !rst;
        found       <= {chance, pick_average, pick_ordinal, pick_queued};
    end

    // ---- cycle 3: the row of the best, and what comes out of it ------------------------------
    reg  [ENTRY-1:0]      cells [0:CELLS-1];
    reg  [COUNT_BITS-1:0] count;
    reg  [CELLS-1:0]      sooner;      // or as soon: up to some cell all are
    reg  [1:0]            flushing;
    wire drains = state == DRAINS && count != 0 && (cells[0][0] || out_ready);

    assign flushed     = flushing[1];
    assign out_done    = state == DRAINS && count == 0;
    assign out_valid   = state == DRAINS && count != 0 && !cells[0][0];
    assign out_ordinal = cells[0][1 +: ORDINAL_BITS];
    assign out_chance  = cells[0][ENTRY-1 -: 16];

    always @* begin
        for (i = 0; i < CELLS; i = i + 1)
            sooner[i] = i[COUNT_BITS-1:0] < count
                && cells[i][ENTRY-1 -: 32] >= found[ENTRY-1 -: 32];
    end

    always @(posedge clk) begin
        flushing <= rst ? 2'b0 : {flushing[0], state == FLUSHES && rest == 0 && flushing == 0};
        for (i = 0; i < CELLS; i = i + 1)
            if (drains)
                cells[i] <= cells[(i + 1) % CELLS];
            else if (found_valid && !sooner[i])
                cells[i] <= i == 0 || sooner[(i + CELLS - 1) % CELLS] ? found
                    : cells[(i + CELLS - 1) % CELLS];
        if (rst)
            count <= 0;
        else if (drains)
            count <= count - 1'b1;
        else if (found_valid && count != room)
            count <= count + 1'b1;
    end
endmodule
