// qos_arbiter.v: the scheduler of qos.h in hardware, for queues that lie in SRAM.
//
// Model: an operation is a put or a take, and one begins every INTERVAL cycles at most. Each session
// has its first entry in a record, and the others in a heap below it (session_heap.v). Of each tenant
// the first session is at the root of a tree of winners (tournament.v): the first entry of a session
// that is in the current round, or the first of all if none is. A session has the number of its round
// and the bytes it was served in it; its parity is enough to compare, since who waits is in the
// tenant's round or in the next one. So an operation changes one record, one way down a heap, which
// goes on while the next operation has begun, and one way up the tree, which has to end before.
// Tokens are added in every cycle up to the burst, in the fixed point of the library (2^-32 bytes); a
// tenant is ready while something waits and the tokens cover its first entry. Turns change as in the
// library: the tenant of the turn keeps it while it is ready and its deficit covers its first entry;
// else the next ready tenant gets its weight's bytes.
//
//   cycle  0  the operation begins; who is ready
//          1  of a take: whose turn it is; tokens and deficit are charged
//          2  the session's record is read, and its siblings in the tree
//          3  is there room? what becomes of the session
//          4  the answer is out; the record is written, with the first entry of its heap
//  5 to INTERVAL - 1  the tree
//
// A take begins when the line is free and a tenant is ready; where a put waits too, both take turns.
// An operation begins INTERVAL cycles after the last, or an even number later (session_heap.v), or
// after two INTERVALs. Time is counted in cycles from reset, and a deadline is a cycle. After reset a
// sweep clears the memories. Not in hardware: the counters. Configuration does not change after reset.
// Only a session of which nothing waits may be put to by another tenant.
module qos_arbiter #(
    parameter TENANT_BITS = 2,
    parameter DEPTH_BITS = 3,     // 2^DEPTH_BITS entries for each tenant
    parameter SESSION_BITS = 4,
    parameter COST_BITS = 16,
    parameter INTERVAL = 7,       // odd; 5 + SESSION_BITS / 2 and 1 + DEPTH_BITS at least
    parameter TAG_BITS = 32,
    parameter TIME_BITS = 32,
    parameter AGE_BITS = 48,
    parameter ROUND_BITS = 48
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
    // a new item
    input  wire                    put_valid,
    output wire                    put_ready,
    input  wire [TENANT_BITS-1:0]  put_tenant,
    input  wire [SESSION_BITS-1:0] put_session,
    input  wire [COST_BITS-1:0]    put_cost,
    input  wire [TIME_BITS-1:0]    put_deadline,
    input  wire [TAG_BITS-1:0]     put_tag,
    // the line is free; somebody is served
    input  wire                    take,
    output wire                    take_begins,
    // four cycles after an operation began
    output reg                     out_valid,
    output reg                     out_take,
    output reg                     out_full,           // of a put: it does not wait, and why
    output reg                     out_session_full,
    output reg  [TENANT_BITS-1:0]  out_tenant,         // of a take: who is served
    output reg  [COST_BITS-1:0]    out_cost,
    output reg  [TAG_BITS-1:0]     out_tag
);
    localparam TENANTS = 1 << TENANT_BITS;
    localparam DEPTH = 1 << DEPTH_BITS;
    localparam COUNT_BITS = DEPTH_BITS + 1;
    localparam TAIL_BITS = COST_BITS + TAG_BITS;
    localparam ENTRY = TIME_BITS + AGE_BITS + TAIL_BITS;
    localparam NODE = 2 + ENTRY + SESSION_BITS;
    localparam IDS = (1 << (TENANT_BITS + DEPTH_BITS)) + 2;  // two may still be on their way back
    localparam ID_BITS = TENANT_BITS + DEPTH_BITS + 1;
    localparam RECORD = TENANT_BITS + COUNT_BITS + ROUND_BITS + 32 + ID_BITS + ENTRY;
    localparam LEAF_BITS = TENANT_BITS + SESSION_BITS - 1;
    localparam SWEEP_BITS = ID_BITS > LEAF_BITS ? ID_BITS : LEAF_BITS;
    localparam PHASE_BITS = $clog2(2 * INTERVAL);

    // ---- cycle 0: who is ready, and which operation begins -----------------------------------
    reg  [SWEEP_BITS:0]      swept;
    wire                     running = swept[SWEEP_BITS];
    reg  [PHASE_BITS-1:0]    phase;    // cycles since the last operation began; 0: two INTERVALs
    wire [TENANTS-1:0]       ready;
    wire [TENANTS*NODE-1:0]  roots;
    reg                      took;     // the last operation was a take
    wire idle   = running && !rst
        && (phase == 0 || (phase >= INTERVAL[PHASE_BITS-1:0] && phase[0]));
    wire takes  = take && ready != 0 && !(put_valid && took);
    wire begins = idle && (takes || put_valid);
    assign put_ready   = idle && !takes;
    assign take_begins = idle && takes;

    reg  [TIME_BITS-1:0]     now, began_at, op_deadline;
    reg                      op_take;
    reg  [TENANTS-1:0]       op_ready;
    reg  [TENANT_BITS-1:0]   op_tenant;
    reg  [SESSION_BITS-1:0]  op_session;
    reg  [COST_BITS-1:0]     op_cost;
    reg  [TAG_BITS-1:0]      op_tag;

    always @(posedge clk) begin
        now <= rst ? 0 : now + 1'b1;
        if (rst || (!begins && phase == 2 * INTERVAL[PHASE_BITS-1:0] - 1'b1))
            phase <= 0;
        else
            phase <= begins ? 1 : phase == 0 ? 0 : phase + 1'b1;
        swept <= rst ? 0 : running ? swept : swept + 1'b1;
        if (rst)
            took <= 0;
        else if (begins)
            took <= takes;
        if (begins)
            {op_take, op_ready, began_at, op_deadline} <= {takes, ready, now, put_deadline};
    end

    // ---- cycle 1: whose turn it is; the deadline of what is put ------------------------------
    wire                    charges = phase == 1 && op_take;
    reg  [TENANT_BITS-1:0]  turn, next;
    wire [TENANTS*32-1:0]   deficits;
    integer step;

    always @* begin : rotate
        reg [TENANT_BITS-1:0] tenant;
        next = turn;
        for (step = TENANTS; step > 0; step = step - 1) begin
            tenant = turn + step[TENANT_BITS-1:0];
            if (op_ready[tenant])
                next = tenant;
        end
    end

    wire [COST_BITS-1:0]    turn_cost = roots[turn*NODE+TAG_BITS +: COST_BITS];
    wire stays = op_ready[turn] && {{(32-COST_BITS){1'b0}}, turn_cost} <= deficits[turn*32 +: 32];
    wire [TENANT_BITS-1:0]  winner = stays ? turn : next;
    wire [TAIL_BITS+SESSION_BITS-1:0] won = roots[winner*NODE +: TAIL_BITS+SESSION_BITS];
    wire [COST_BITS-1:0]    won_cost = won[TAG_BITS +: COST_BITS];
    wire [TIME_BITS-1:0]    ahead = op_deadline - began_at;
    reg  [TIME_BITS-1:0]    op_key;

    always @(posedge clk) begin
        op_key <= op_deadline <= began_at ? began_at
            : ahead > ahead_max ? began_at + ahead_max : op_deadline;
        if (begins)
            {op_tenant, op_session, op_cost, op_tag} <=
                {put_tenant, put_session, put_cost, put_tag};
        else if (charges)
            {op_tenant, op_session, op_cost, op_tag} <= {winner, won};
        if (rst)
            turn <= {TENANT_BITS{1'b1}};
        else if (charges)
            turn <= winner;
    end

    // ---- cycle 2: the record of the session --------------------------------------------------
    (* ram_style = "block" *)
    reg  [RECORD-1:0]       records [0:(1<<SESSION_BITS)-1];
    reg  [RECORD-1:0]       record;
    wire [TENANT_BITS-1:0]  owner;
    wire [COUNT_BITS-1:0]   waiting;
    wire [ROUND_BITS-1:0]   round;
    wire [31:0]             used;
    wire [ID_BITS-1:0]      place;
    wire [ENTRY-1:0]        entry;
    assign {owner, waiting, round, used, place, entry} = record;

    always @(posedge clk)
        if (phase == 2)
            record <= records[op_session];

    // ---- cycle 3: is there room, and what becomes of the session -----------------------------
    reg  [ROUND_BITS-1:0]   line_round [0:TENANTS-1];
    reg  [COUNT_BITS-1:0]   count [0:TENANTS-1];
    reg  [AGE_BITS-1:0]     age;
    wire [ROUND_BITS-1:0]   line = line_round[op_tenant];
    wire full         = count[op_tenant] == DEPTH[COUNT_BITS-1:0];
    wire session_full = !full && waiting == session_max;
    wire decides      = phase == 3 && !rst;
    wire accepts      = decides && !op_take && !full && !session_full;
    wire serves       = decides && op_take;

    wire adopted = owner != op_tenant;
    wire alone   = waiting == 0;           // of a put: its session joins the round
    wire late    = adopted || (alone && round < line);
    wire [31:0] used_then = used + {{(32-COST_BITS){1'b0}}, op_cost};
    wire leaves  = session_quantum != 0 && used_then >= session_quantum;
    wire [ENTRY-1:0] put_entry = {op_key, age, op_cost, op_tag};
    wire first   = alone || put_entry[ENTRY-1:TAIL_BITS] < entry[ENTRY-1:TAIL_BITS];

    reg                     changes, pulled, frees;
    reg  [COUNT_BITS-1:0]   waiting_then;
    reg  [ROUND_BITS-1:0]   round_then;
    reg  [31:0]             used_left;
    reg  [ID_BITS-1:0]      place_then;
    reg  [ENTRY-1:0]        entry_then;
    wire [ID_BITS-1:0]      new_place;
    integer                 m;

    always @(posedge clk) begin
        changes      <= accepts || serves;
        pulled       <= op_take && waiting != 1;
        frees        <= serves && waiting == 1;
        waiting_then <= op_take ? waiting - 1'b1 : waiting + 1'b1;
        round_then   <= !op_take ? (late ? line : round)
            : round + {{(ROUND_BITS-1){1'b0}}, leaves};
        used_left    <= !op_take ? (late ? 0 : used)
            : session_quantum == 0 ? 0 : leaves ? used_then - session_quantum : used_then;
        place_then   <= !op_take && alone ? new_place : place;
        entry_then   <= first ? put_entry : entry;
        out_valid    <= decides;
        {out_take, out_full, out_session_full} <=
            {op_take, !op_take && full, !op_take && session_full};
        {out_tenant, out_cost, out_tag} <= {op_tenant, op_cost, op_tag};
        age <= rst ? 0 : age + {{(AGE_BITS-1){1'b0}}, accepts};
        for (m = 0; m < TENANTS; m = m + 1)
            if (rst) begin
                count[m]      <= 0;
                line_round[m] <= 0;
            end else if (op_tenant == m[TENANT_BITS-1:0]) begin
                count[m] <= count[m] + {{DEPTH_BITS{1'b0}}, accepts}
                    - {{DEPTH_BITS{1'b0}}, serves};
                if (serves)
                    line_round[m] <= round;
            end
    end

    // ---- the heaps below the first entries, and their free places ----------------------------
    wire             freed;
    wire [ID_BITS-1:0] freed_id;
    wire [ENTRY-1:0] up_entry;
    session_heap #(
        .ID_BITS(ID_BITS), .IDS(IDS), .COUNT_BITS(COUNT_BITS), .ENTRY(ENTRY), .TAIL_BITS(TAIL_BITS)
    ) heaps (
        .clk(clk), .rst(rst), .start((accepts && !alone) || (serves && waiting != 1)),
        .start_pull(op_take), .start_at(place), .start_count(waiting),
        .start_entry(first ? entry : put_entry), .start_new(new_place),
        .up_entry(up_entry), .freed(freed), .freed_id(freed_id));

    (* ram_style = "block" *)
    reg  [ID_BITS-1:0] places [0:IDS-1];   // those that are free, in a ring
    reg  [ID_BITS-1:0] head, tail, found_place;
    localparam [ID_BITS-1:0] LAST = IDS[ID_BITS-1:0] - 1'b1;
    wire gives_back = freed || frees;
    assign new_place = found_place;

    always @(posedge clk) begin
        found_place <= places[head];
        if (!running && swept <= {{(SWEEP_BITS-ID_BITS+1){1'b0}}, LAST})
            places[swept[ID_BITS-1:0]] <= swept[ID_BITS-1:0];
        else if (gives_back)
            places[tail] <= freed ? freed_id : place_then;
        if (rst)
            {head, tail} <= 0;
        else begin
            if (accepts)
                head <= head == LAST ? 0 : head + 1'b1;
            if (gives_back)
                tail <= tail == LAST ? 0 : tail + 1'b1;
        end
    end

    // ---- cycle 4: the record is written; the tree --------------------------------------------
    wire [ENTRY-1:0] entry_4 = pulled ? up_entry : entry_then;
    wire [NODE-1:0]  leaf = {waiting_then != 0, round_then[0], entry_4[ENTRY-1:TAIL_BITS],
        op_session, entry_4[TAIL_BITS-1:0]};

    always @(posedge clk)
        if (!running)
            records[swept[SESSION_BITS-1:0]] <= 0;
        else if (changes)
            records[op_session] <=
                {op_tenant, waiting_then, round_then, used_left, place_then, entry_4};

    tournament #(
        .TENANT_BITS(TENANT_BITS), .SESSION_BITS(SESSION_BITS), .NODE(NODE),
        .TAIL_BITS(TAIL_BITS + SESSION_BITS)
    ) tree (
        .clk(clk), .rst(rst), .sweep(!running), .sweep_at(swept[LEAF_BITS-1:0]),
        .look(phase == 2), .look_tenant(op_tenant), .look_session(op_session),
        .start(changes), .start_parity(line[0]), .start_leaf(leaf), .roots(roots));

    // ---- each tenant: its tokens, its deficit ------------------------------------------------
    genvar t;
    generate
        for (t = 0; t < TENANTS; t = t + 1) begin : tenant
            reg  [63:0] tokens;
            reg  [31:0] deficit;
            wire [63:0] rate_t  = rate[t*64 +: 64];
            wire [63:0] burst_t = burst[t*64 +: 64];
            wire [COST_BITS-1:0] cost = roots[t*NODE+TAG_BITS +: COST_BITS];
            wire [63:0] cost_tokens = {{(32-COST_BITS){1'b0}}, cost, 32'b0};
            wire out = charges && winner == t[TENANT_BITS-1:0];
            wire [31:0] gained = stays ? 0 : turn_bytes[t*32 +: 32];
            // What the first two cycles of an operation do not add comes in the next two.
            wire        waits  = begins || phase == 1;
            wire [63:0] adds   = phase == 2 || phase == 3 ? rate_t << 1 : rate_t;

            assign ready[t] = roots[t*NODE+NODE-1] && (rate_t == 0 || tokens >= cost_tokens);
            assign deficits[t*32 +: 32] = deficit;

            always @(posedge clk)
                if (rst) begin
                    tokens  <= burst_t;
                    deficit <= 0;
                end else begin
                    if (out && rate_t != 0)
                        tokens <= tokens - cost_tokens;
                    else if (!waits && rate_t != 0)
                        tokens <= burst_t - tokens < adds ? burst_t : tokens + adds;
                    if (out)
                        deficit <= deficit + gained - {{(32-COST_BITS){1'b0}}, won_cost};
                    else if (charges && turn == t[TENANT_BITS-1:0] && !op_ready[t])
                        deficit <= 0;
                end
        end
    endgenerate

`ifdef FORMAL
    // Without rounds and limits, turns of 3 bytes and costs of 1 to 3: see test_formal.py. One item,
    // any, is told by its age; each session has an owner, any.
    (* anyconst *) reg [AGE_BITS-1:0] which;
    (* anyconst *) reg [(TENANT_BITS<<SESSION_BITS)-1:0] owners;
    reg started = 0, waits = 0;              // it was put and not taken
    reg [TENANT_BITS-1:0] its_tenant = 0;
    reg [TIME_BITS-1:0]   its_key = 0;
    wire [ENTRY-1:0] taken = entry;          // of a take, in cycle 3
    wire [AGE_BITS-1:0] taken_age = taken[TAIL_BITS +: AGE_BITS];
    genvar f;
    generate
        for (f = 0; f < TENANTS; f = f + 1) begin : promise
            reg [DEPTH_BITS:0] inside = 0;   // accepted and not served
            wire comes = accepts && op_tenant == f;
            wire goes  = serves && op_tenant == f;
            always @(posedge clk)
                inside <= rst ? 0 : inside + comes - goes;
            always @*
                if (started) begin
                    assert (inside == count[f] && inside <= DEPTH);
                    assert (!goes || inside != 0);            // nobody is served unasked
                end
        end
    endgenerate

    always @(posedge clk) begin
        started <= 1;
        if (rst)
            waits <= 0;
        else if (accepts && age == which)
            {waits, its_tenant, its_key} <= {1'b1, op_tenant, op_key};
        else if (serves && taken_age == which)
            waits <= 0;
    end

    always @* begin
        assume (rst == !started);
        assume (turn_bytes == {TENANTS{32'd3}} && rate == 0 && session_quantum == 0);
        assume (put_cost != 0 && put_cost <= 3);
        assume (put_tenant == owners[put_session*TENANT_BITS +: TENANT_BITS]);
        assume (!(&age) && !(&now));                          // neither begins anew
        if (started && serves && waits && its_tenant == op_tenant)
            assert ({taken[ENTRY-1 -: TIME_BITS], taken_age} <= {its_key, which});  // it is first
        if (started && serves && taken_age == which)
            assert (waits && its_tenant == op_tenant);        // and it was put
    end
`endif
endmodule
