// tournament.v: of each tenant the first of its sessions, by a tree of winners.
//
// Model: a leaf for each session, and above it the sooner of two nodes, up to the root. When a leaf
// changes, only the nodes above it change: each is the sooner of the new leaf and the siblings so far.
// These siblings are read all at once, each level from a memory of its own, and two of them are
// compared in a cycle. Leaves are of all tenants; each tenant has inner nodes of its own, in which
// others' leaves count as empty. A node begins with the bit that it is valid, then the parity of its
// session's round: what has not the tenant's parity is behind what has.
//
//   cycle  0  look: the siblings of a session's way are read
//   1 or later  start: with the new leaf, and the parity of the tenant's round
//   STEPS later  the root is there
module tournament #(
    parameter TENANT_BITS = 2,
    parameter SESSION_BITS = 4,
    parameter NODE = 100,
    parameter TAIL_BITS = 40,      // of a node, what is below its key
    parameter STEPS = (SESSION_BITS + 1) / 2
) (
    input  wire                              clk,
    input  wire                              rst,
    input  wire                              sweep,
    input  wire [TENANT_BITS+SESSION_BITS-2:0] sweep_at,
    input  wire                              look,
    input  wire [TENANT_BITS-1:0]            look_tenant,
    input  wire [SESSION_BITS-1:0]           look_session,
    input  wire                              start,
    input  wire                              start_parity,
    input  wire [NODE-1:0]                   start_leaf,
    output wire [(1<<TENANT_BITS)*NODE-1:0]  roots
);
    localparam TENANTS = 1 << TENANT_BITS;
    localparam [SESSION_BITS-1:0] ONE = 1;

    function is_sooner(input parity, input [NODE-1:0] a, input [NODE-1:0] b);
        is_sooner = {!a[NODE-1], a[NODE-2] ^ parity, a[NODE-3:TAIL_BITS]}
            < {!b[NODE-1], b[NODE-2] ^ parity, b[NODE-3:TAIL_BITS]};
    endfunction

    // ---- whose way, and how far it was compared ----------------------------------------------
    reg  [TENANT_BITS-1:0]  tenant;
    reg  [SESSION_BITS-1:0] session;
    reg                     parity;
    reg  [STEPS-1:0]        steps;               // a bit for the step of this cycle
    reg  [NODE-1:0]         node;
    reg  [NODE-1:0]         first_sibling, second_sibling;
    wire [NODE-1:0]         siblings [0:2*STEPS-1];  // by levels above the leaves
    // verilator lint_off UNUSEDSIGNAL
    wire [STEPS:0]          stepping = {steps, start};
    // verilator lint_on UNUSEDSIGNAL
    integer                 s;

    always @* begin
        first_sibling  = 0;
        second_sibling = 0;
        for (s = 0; s < STEPS; s = s + 1) begin
            first_sibling  = first_sibling | (siblings[2*s] & {NODE{steps[s]}});
            second_sibling = second_sibling | (siblings[2*s+1] & {NODE{steps[s]}});
        end
    end

    wire [NODE-1:0] first  = is_sooner(parity, first_sibling, node) ? first_sibling : node;
    wire [NODE-1:0] second = is_sooner(parity, second_sibling, first) ? second_sibling : first;

    always @(posedge clk) begin
        if (look)
            {tenant, session} <= {look_tenant, look_session};
        if (start)
            parity <= start_parity;
        node  <= start ? start_leaf : second;
        steps <= rst ? {STEPS{1'b0}} : stepping[STEPS-1:0];
    end

    // ---- the levels --------------------------------------------------------------------------
    genvar l;
    generate
        for (l = 0; l < SESSION_BITS; l = l + 1) begin : level
            // The leaves have their owner beside them, the others are in its part of the memory.
            localparam AT_BITS = l == 0 ? SESSION_BITS : TENANT_BITS + SESSION_BITS - l;
            localparam WIDTH = l == 0 ? TENANT_BITS + NODE : NODE;
            wire [AT_BITS-1:0] look_at, node_at;
            wire               write = steps[l/2] || sweep;
            wire [WIDTH-1:0]   found, written;
            reg  [WIDTH-1:0]   sibling;

            if (l == 0) begin : leaf
                assign look_at = look_session ^ ONE;
                assign node_at = session;
                assign written = sweep ? {WIDTH{1'b0}} : {tenant, node};
                assign siblings[0] = {sibling[NODE-1] && sibling[WIDTH-1 -: TENANT_BITS] == tenant,
                    sibling[NODE-2:0]};
            end else begin : inner
                assign look_at = {look_tenant, look_session[SESSION_BITS-1:l] ^ ONE[SESSION_BITS-1-l:0]};
                assign node_at = {tenant, session[SESSION_BITS-1:l]};
                assign written = sweep ? {WIDTH{1'b0}} : l % 2 == 0 ? node : first;
                assign siblings[l] = sibling;
            end
            if (AT_BITS < 5) begin : few
                reg [WIDTH-1:0] nodes [0:(1<<AT_BITS)-1];
                always @(posedge clk)
                    if (write)
                        nodes[sweep ? sweep_at[AT_BITS-1:0] : node_at] <= written;
                assign found = nodes[look_at];
            end else begin : many
                (* ram_style = "block" *)
                reg [WIDTH-1:0] nodes [0:(1<<AT_BITS)-1];
                always @(posedge clk)
                    if (write)
                        nodes[sweep ? sweep_at[AT_BITS-1:0] : node_at] <= written;
                assign found = nodes[look_at];
            end
            always @(posedge clk)
                if (look)
                    sibling <= found;
        end
        if (SESSION_BITS % 2 == 1) begin : odd
            assign siblings[2*STEPS-1] = 0;      // never before another
        end
    endgenerate

    // ---- the roots ---------------------------------------------------------------------------
    reg [NODE-1:0] root [0:TENANTS-1];
    integer        t;
    always @(posedge clk)
        for (t = 0; t < TENANTS; t = t + 1)
            if (rst)
                root[t] <= 0;
            else if (steps[STEPS-1] && tenant == t[TENANT_BITS-1:0])
                root[t] <= second;

    genvar r;
    generate
        for (r = 0; r < TENANTS; r = r + 1) begin : each
            assign roots[r*NODE +: NODE] = root[r];
        end
    endgenerate
endmodule
