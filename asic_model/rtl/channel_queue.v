// channel_queue.v: who goes next over one channel: a direction of the front end, or a memory's.
//
// Model: requests wait in two queues, urgent and other, which share one bound. The channel serves
// one at a time, for as many cycles as the request says, and begins one only with a credit. The
// receiver gives the credit back when it has taken what it stood for. What arrives at an idle
// channel begins in the same cycle, as does the next when the channel becomes free or a credit comes
// back. When the queues are full `in_ready` is low, and the sender keeps its request.
// A memory controller gives each credit back a cycle later; at once would be a loop of gates.
//
// Proved (test_formal.py): credits are never negative or above their number, none is lost; nothing
// begins that did not arrive, and no request is lost.
module channel_queue #(
    parameter QUEUE_BITS = 3,     // 2^QUEUE_BITS requests wait
    parameter CREDITS = 8,
    parameter CREDIT_BITS = 4,    // CREDITS < 2^CREDIT_BITS
    parameter CYCLES_BITS = 8,
    parameter TAG_BITS = 16
) (
    input  wire                   clk,
    input  wire                   rst,
    input  wire                   in_valid,
    output wire                   in_ready,
    input  wire                   in_urgent,
    input  wire [CYCLES_BITS-1:0] in_cycles,   // 1 or more
    input  wire [TAG_BITS-1:0]    in_tag,
    output wire                   begins,
    output wire [TAG_BITS-1:0]    begins_tag,
    input  wire                   credit_back
);
    localparam QUEUE = 1 << QUEUE_BITS;
    localparam ENTRY = CYCLES_BITS + TAG_BITS;

    reg [ENTRY-1:0]       urgent [0:QUEUE-1];
    reg [ENTRY-1:0]       other  [0:QUEUE-1];
    reg [QUEUE_BITS-1:0]  urgent_head, other_head;
    reg [QUEUE_BITS:0]    urgent_count, other_count;
    reg [CREDIT_BITS-1:0] credits;
    reg [CYCLES_BITS-1:0] busy;   // cycles that the channel is still occupied after this one

    wire is_empty  = urgent_count == 0 && other_count == 0;
    wire can_begin = busy == 0 && (credits != 0 || credit_back) && !rst;
    wire pass      = can_begin && is_empty && in_valid;
    wire pop       = can_begin && !is_empty;
    wire pop_urgent = pop && urgent_count != 0;
    wire pop_other  = pop && urgent_count == 0;
    wire [QUEUE_BITS:0] count = urgent_count + other_count;
    wire store     = in_valid && in_ready && !pass;
    wire [ENTRY-1:0] entry = {in_cycles, in_tag};
    wire [ENTRY-1:0] next = pop_urgent ? urgent[urgent_head] : pop_other ? other[other_head] : entry;
    wire [QUEUE_BITS-1:0] urgent_tail = urgent_head + urgent_count[QUEUE_BITS-1:0];
    wire [QUEUE_BITS-1:0] other_tail  = other_head + other_count[QUEUE_BITS-1:0];

    assign in_ready   = !rst && (count != QUEUE[QUEUE_BITS:0] || pop);
    assign begins     = pass || pop;
    assign begins_tag = next[TAG_BITS-1:0];

    always @(posedge clk) begin
        if (store && in_urgent)
            urgent[urgent_tail] <= entry;
        if (store && !in_urgent)
            other[other_tail] <= entry;
        if (rst) begin
            {urgent_head, other_head}   <= 0;
            {urgent_count, other_count} <= 0;
            credits <= CREDITS[CREDIT_BITS-1:0];
            busy    <= 0;
        end else begin
            urgent_head  <= urgent_head + {{(QUEUE_BITS-1){1'b0}}, pop_urgent};
            other_head   <= other_head + {{(QUEUE_BITS-1){1'b0}}, pop_other};
            urgent_count <= urgent_count + {{QUEUE_BITS{1'b0}}, store && in_urgent}
                - {{QUEUE_BITS{1'b0}}, pop_urgent};
            other_count  <= other_count + {{QUEUE_BITS{1'b0}}, store && !in_urgent}
                - {{QUEUE_BITS{1'b0}}, pop_other};
            credits <= credits + {{(CREDIT_BITS-1){1'b0}}, credit_back}
                - {{(CREDIT_BITS-1){1'b0}}, begins};
            busy <= begins ? next[TAG_BITS +: CYCLES_BITS] - 1'b1 : busy == 0 ? 0 : busy - 1'b1;
        end
    end

`ifdef FORMAL
    reg started = 0;
    reg [CREDIT_BITS:0]  held = 0;      // credits that the receiver has
    reg [QUEUE_BITS+1:0] inside = 0;    // requests that arrived and have not begun

    always @(posedge clk) begin
        started <= 1;
        held    <= rst ? 0 : held + begins - credit_back;
        inside  <= rst ? 0 : inside + (in_valid && in_ready) - begins;
    end

    always @* begin
        assume (rst == !started);
        assume (!credit_back || (held != 0 && started));
        assume (in_cycles != 0);
        if (started) begin
            assert (credits <= CREDITS);
            assert (credits + held == CREDITS);
            assert (!begins || credits != 0 || credit_back);
            assert (!begins || inside != 0 || in_valid);
            assert (inside == urgent_count + other_count);
            assert (inside <= QUEUE);
        end
    end
`endif
endmodule
