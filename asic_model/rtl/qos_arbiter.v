// qos_arbiter.v: the scheduler of qos.h in hardware: one decision per cycle.
//
// Model: each tenant has a queue that is sorted as it fills: a cell for each entry compares its key
// with the new one and keeps its entry, or takes its neighbour's or the new one. So the most urgent
// entry is always available, and the queue's head is the first entry of a session that is in the
// current round, or the first of any session if none is. A round has no number: each session has
// the bytes it was served in its round, and a bit that says whether it is ahead, in the next round.
// When a session that is ahead is served, its tenant's round ends, and the sessions that were not
// ahead begin at 0. Tokens are added in every cycle up to the burst, in the fixed point of the
// library (2^-32 bytes); a tenant is ready while something waits and the tokens cover its head.
// Turns change as in the library: the tenant of the turn keeps it while it is ready and its deficit
// covers its head; else the next ready tenant gets its weight's bytes.
//
// `take` is answered in the same cycle; so is `put`, which sees the room that a take of this cycle
// makes. Time is counted in cycles from reset; a deadline is a cycle. Not in hardware: the
// counters, which would be additional adders. Configuration does not change after reset.
module qos_arbiter #(
    parameter TENANT_BITS = 2,
    parameter DEPTH_BITS = 3,     // 2^DEPTH_BITS entries for each tenant
    parameter SESSION_BITS = 4,
    parameter COST_BITS = 16,
    parameter TAG_BITS = 32,
    parameter TIME_BITS = 32
) (
    input  wire                    clk,
    input  wire                    rst,
    // configuration: of each tenant, tenant 0 in the lowest bits
    input  wire [(1<<TENANT_BITS)*32-1:0] turn_bytes,
    input  wire [(1<<TENANT_BITS)*64-1:0] rate,        // tokens a cycle; 0: no limit
    input  wire [(1<<TENANT_BITS)*64-1:0] burst,       // tokens
    input  wire [DEPTH_BITS:0]     session_max,
    input  wire [31:0]             session_quantum,    // bytes of a session in a round; 0: no rounds
    input  wire [TIME_BITS-1:0]    ahead_max,
    // a new item, and why it is refused
    input  wire                    put,
    input  wire [TENANT_BITS-1:0]  put_tenant,
    input  wire [SESSION_BITS-1:0] put_session,
    input  wire [COST_BITS-1:0]    put_cost,
    input  wire [TIME_BITS-1:0]    put_deadline,
    input  wire [TAG_BITS-1:0]     put_tag,
    output wire                    put_full,
    output wire                    put_session_full,
    // the served item
    input  wire                    take,
    output wire                    take_valid,
    output wire [TENANT_BITS-1:0]  take_tenant,
    output wire [COST_BITS-1:0]    take_cost,
    output wire [TAG_BITS-1:0]     take_tag
);
    localparam TENANTS = 1 << TENANT_BITS;
    localparam DEPTH = 1 << DEPTH_BITS;
    localparam SESSIONS = 1 << SESSION_BITS;
    localparam ENTRY = TIME_BITS + COST_BITS + SESSION_BITS + TAG_BITS;
    localparam COST_AT = TAG_BITS + SESSION_BITS;
    localparam KEY_AT = COST_AT + COST_BITS;

    // ---- which tenants are ready, and whose turn it is ---------------------------------------
    wire [TENANTS-1:0]          ready;
    wire [TENANTS*ENTRY-1:0]    firsts;
    wire [TENANTS*32-1:0]       deficits;
    reg  [TENANT_BITS-1:0]      turn, next;
    integer step;

    always @* begin : rotate
        reg [TENANT_BITS-1:0] tenant;
        next = turn;
        for (step = TENANTS; step > 0; step = step - 1) begin
            tenant = turn + step[TENANT_BITS-1:0];
            if (ready[tenant])
                next = tenant;
        end
    end

    wire [COST_BITS-1:0] turn_cost = firsts[turn*ENTRY+COST_AT +: COST_BITS];
    wire stays = ready[turn] && {{(32-COST_BITS){1'b0}}, turn_cost} <= deficits[turn*32 +: 32];
    wire [TENANT_BITS-1:0] winner = stays ? turn : next;
    wire [KEY_AT-1:0] first = firsts[winner*ENTRY +: KEY_AT];
    wire taken = take && take_valid;
    wire [SESSION_BITS-1:0] take_session = first[TAG_BITS +: SESSION_BITS];

    assign take_valid  = |ready;
    assign take_tenant = winner;
    assign take_cost   = first[COST_AT +: COST_BITS];
    assign take_tag    = first[TAG_BITS-1:0];

    always @(posedge clk)
        if (rst)
            turn <= {TENANT_BITS{1'b1}};
        else if (taken)
            turn <= winner;

    // ---- rounds: which sessions are ahead, and their bytes in their round ----------------------
    reg  [SESSIONS-1:0]    ahead_of_round;
    reg  [31:0]            used [0:SESSIONS-1];
    reg  [TENANT_BITS-1:0] owner [0:SESSIONS-1];
    wire        round_ends = taken && ahead_of_round[take_session];
    wire [31:0] used_then  = used[take_session] + {{(32-COST_BITS){1'b0}}, take_cost};
    wire        round_full = used_then >= session_quantum;
    wire        adopted    = accepted && owner[put_session] != put_tenant;
    integer     member;

    always @(posedge clk)
        for (member = 0; member < SESSIONS; member = member + 1)
            if (rst || session_quantum == 0 || (adopted && put_session == member[SESSION_BITS-1:0]))
            begin
                ahead_of_round[member] <= 1'b0;
                used[member] <= 0;
            end else if (taken && take_session == member[SESSION_BITS-1:0]) begin
                ahead_of_round[member] <= round_full;
                used[member] <= round_full ? used_then - session_quantum : used_then;
            end else if (round_ends && owner[member] == winner) begin
                ahead_of_round[member] <= 1'b0;
                if (!ahead_of_round[member])
                    used[member] <= 0;
            end

    always @(posedge clk)
        if (accepted)
            owner[put_session] <= put_tenant;

    // ---- time, and how much of each session waits ---------------------------------------------
    reg [TIME_BITS-1:0] now;
    reg [DEPTH_BITS:0]  waiting [0:SESSIONS-1];
    wire [TENANTS-1:0]  fulls;
    wire [DEPTH_BITS:0] session_room_used = waiting[put_session]
        - {{DEPTH_BITS{1'b0}}, taken && take_session == put_session};
    wire accepted = put && !put_full && !put_session_full;
    wire [TIME_BITS-1:0] ahead = put_deadline - now;
    wire [TIME_BITS-1:0] put_key = put_deadline <= now ? now
        : ahead > ahead_max ? now + ahead_max : put_deadline;
    wire [ENTRY-1:0] entry = {put_key, put_cost, put_session, put_tag};
    integer session;

    assign put_full         = fulls[put_tenant];
    assign put_session_full = !put_full && session_room_used == session_max;

    always @(posedge clk) begin
        now <= rst ? 0 : now + 1'b1;
        for (session = 0; session < SESSIONS; session = session + 1)
            if (rst)
                waiting[session] <= 0;
            else
                waiting[session] <= waiting[session]
                    + {{DEPTH_BITS{1'b0}}, accepted && put_session == session[SESSION_BITS-1:0]}
                    - {{DEPTH_BITS{1'b0}}, taken && take_session == session[SESSION_BITS-1:0]};
    end

    // ---- each tenant: its sorted queue, its tokens, its deficit --------------------------------
    genvar t;
    generate
        for (t = 0; t < TENANTS; t = t + 1) begin : tenant
            reg [ENTRY-1:0]    cells [0:DEPTH-1];
            reg [DEPTH_BITS:0] count;
            reg [63:0]         tokens;
            reg [31:0]         deficit;
            wire [63:0] rate_t  = rate[t*64 +: 64];
            wire [63:0] burst_t = burst[t*64 +: 64];
            // The first entry in the current round; if there is none, the first.
            integer i, j;
            reg  [DEPTH_BITS-1:0] chosen;
            reg                   in_round;
            wire [COST_BITS-1:0] cost = cells[chosen][COST_AT +: COST_BITS];
            wire [63:0] cost_tokens = {{(32-COST_BITS){1'b0}}, cost, 32'b0};
            wire out = taken && winner == t[TENANT_BITS-1:0];
            wire in  = accepted && put_tenant == t[TENANT_BITS-1:0];
            wire [DEPTH_BITS:0] kept = count - {{DEPTH_BITS{1'b0}}, out};
            wire [63:0] tokens_left = out ? tokens - cost_tokens : tokens;
            wire begins = out && !stays;
            wire [31:0] gained = begins ? turn_bytes[t*32 +: 32] : 0;

            assign ready[t] = count != 0 && (rate_t == 0 || tokens >= cost_tokens);
            assign fulls[t] = kept == DEPTH[DEPTH_BITS:0];
            assign firsts[t*ENTRY +: ENTRY] = cells[chosen];
            assign deficits[t*32 +: 32] = deficit;

            always @* begin
                chosen = 0;
                in_round = 1'b0;
                for (j = DEPTH - 1; j >= 0; j = j - 1) begin
                    in_round = j[DEPTH_BITS:0] < count
                        && !ahead_of_round[cells[j][TAG_BITS +: SESSION_BITS]];
                    if (in_round)
                        chosen = j[DEPTH_BITS-1:0];
                end
            end

            // A cell's entry after a take moved those behind it by one, and whether it is sooner than
            // the new entry, or as soon: up to some cell all are.
            reg [ENTRY-1:0] moved [0:DEPTH-1];
            reg [DEPTH-1:0] sooner;

            always @* begin
                for (i = 0; i < DEPTH; i = i + 1) begin
                    moved[i]  = out && i[DEPTH_BITS-1:0] >= chosen && i + 1 < DEPTH
                        ? cells[(i + 1) % DEPTH] : cells[i];
                    sooner[i] = i[DEPTH_BITS:0] < kept && moved[i][KEY_AT +: TIME_BITS] <= put_key;
                end
            end

            always @(posedge clk) begin
                for (i = 0; i < DEPTH; i = i + 1)
                    cells[i] <= !in || sooner[i] ? moved[i]
                        : i == 0 || sooner[(i + DEPTH - 1) % DEPTH] ? entry
                        : moved[(i + DEPTH - 1) % DEPTH];
                if (rst) begin
                    count   <= 0;
                    tokens  <= burst_t;
                    deficit <= 0;
                end else begin
                    count <= kept + {{DEPTH_BITS{1'b0}}, in};
                    if (rate_t != 0)
                        tokens <= burst_t - tokens_left < rate_t ? burst_t : tokens_left + rate_t;
                    if (out)
                        deficit <= deficit + gained - {{(32-COST_BITS){1'b0}}, cost};
                    else if (taken && turn == t[TENANT_BITS-1:0] && !ready[t])
                        deficit <= 0;
                end
            end
        end
    endgenerate

`ifdef FORMAL
    // Without rounds and limits, turns of 3 bytes and costs of 1 to 3: see test_formal.py.
    localparam PASSED_MAX = 5 * (TENANTS - 1);
    reg started = 0;
    wire [TENANTS-1:0] outs;
    wire granted = take && take_valid;
    genvar f;
    generate
        for (f = 0; f < TENANTS; f = f + 1) begin : promise
            reg [DEPTH_BITS:0] inside = 0;  // accepted and not granted
            reg [7:0]          passed = 0;  // grants to others since it waits
            wire comes = accepted && put_tenant == f;
            wire goes  = granted && take_tenant == f;
            assign outs[f] = tenant[f].out;
            always @(posedge clk) begin
                inside <= rst ? 0 : inside + comes - goes;
                passed <= rst || inside == 0 || goes ? 0 : passed + granted;
            end
            always @*
                if (started) begin
                    assert (inside == tenant[f].count);
                    assert (inside <= DEPTH);
                    assert (!goes || inside != 0);            // no grant without a request
                    assert (passed <= PASSED_MAX);            // none starves
                end
        end
    endgenerate

    always @(posedge clk)
        started <= 1;
    always @* begin
        assume (rst == !started);
        assume (turn_bytes == {TENANTS{32'd3}} && rate == 0 && session_quantum == 0);
        assume (put_cost != 0 && put_cost <= 3);
        if (started) begin
            assert ((outs & (outs - 1'b1)) == 0);             // at most one grant a cycle
            assert (granted == (outs != 0));
        end
    end
`endif
endmodule
