// dma_engines.v: descriptors of transfers in, pieces of them on several engines.
//
// Model: a descriptor gets a slot, which it has until its last piece has ended; with none free the
// port is not ready. It is cut into pieces that end at multiples of the piece's size, one in each
// cycle. Pieces wait in a queue, those of urgent descriptors first (channel_queue.v). One at a time
// is fetched and waits for an engine, which it occupies for the setup and for its bytes. Pieces of
// a descriptor end in any order; the descriptor ends with the last of them, several in one cycle.
//
//   cycle  0  a descriptor is accepted
//          1  its first piece is cut off and is in the queue; with nothing waiting, it is fetched
//          2  it begins on an engine, if one is free, or becomes free in this cycle
//
// Proved (test_formal.py): no more pieces are in flight than there are engines; none crosses a
// boundary; a descriptor ends when its last byte has been moved, and not before.
module dma_engines #(
    parameter ENGINE_BITS = 2,     // 2^ENGINE_BITS engines
    parameter SLOT_BITS = 3,       // 2^SLOT_BITS descriptors in flight
    parameter QUEUE_BITS = 3,      // 2^QUEUE_BITS pieces wait
    parameter PIECE_BITS = 13,     // a piece has at most 2^PIECE_BITS bytes
    parameter WIDTH_BITS = 5,      // an engine moves 2^WIDTH_BITS bytes in a cycle
    parameter SETUP = 16,          // cycles
    parameter ADDRESS_BITS = 40,
    parameter BYTES_BITS = 22
) (
    input  wire                    clk,
    input  wire                    rst,
    input  wire                    in_valid,
    output wire                    in_ready,
    output wire [SLOT_BITS-1:0]    in_slot,     // that the descriptor gets
    input  wire                    in_urgent,
    input  wire [ADDRESS_BITS-1:0] in_address,
    input  wire [BYTES_BITS-1:0]   in_bytes,    // 1 or more
    output wire                    begins,      // a piece, on an engine
    output wire [ENGINE_BITS-1:0]  begins_engine,
    output wire [SLOT_BITS-1:0]    begins_slot,
    output wire [ADDRESS_BITS-1:0] begins_address,
    output wire [PIECE_BITS:0]     begins_bytes,
    output wire [(1<<SLOT_BITS)-1:0] ends       // these descriptors, in this cycle
);
    localparam ENGINES = 1 << ENGINE_BITS;
    localparam SLOTS = 1 << SLOT_BITS;
    localparam PIECE = 1 << PIECE_BITS;
    localparam WIDTH = 1 << WIDTH_BITS;
    localparam OPEN_BITS = BYTES_BITS - PIECE_BITS + 2;      // pieces of a descriptor
    localparam LEFT_BITS = $clog2(SETUP + PIECE / WIDTH) + 1;
    localparam TAG_BITS = SLOT_BITS + ADDRESS_BITS + PIECE_BITS + 1;

    // ---- slots, and the descriptor that is being cut -----------------------------------------
    reg  [SLOTS-1:0]        active;
    reg                     cutting;
    reg  [SLOT_BITS-1:0]    slot;
    reg                     urgent;
    reg  [ADDRESS_BITS-1:0] address;
    reg  [BYTES_BITS-1:0]   bytes;               // that are left
    wire [PIECE_BITS:0]     room = PIECE[PIECE_BITS:0] - {1'b0, address[PIECE_BITS-1:0]};
    wire                    is_last = bytes <= {{(BYTES_BITS-PIECE_BITS-1){1'b0}}, room};
    wire [PIECE_BITS:0]     piece = is_last ? bytes[PIECE_BITS:0] : room;
    wire                    queue_ready;
    wire                    cut = cutting && queue_ready;
    wire [SLOTS-1:0]        free = ~active | ends;
    wire                    accepted = in_valid && in_ready;
    reg  [SLOT_BITS-1:0]    lowest;
    integer                 f;

    always @* begin
        lowest = 0;
        for (f = SLOTS - 1; f >= 0; f = f - 1)
            if (free[f])
                lowest = f[SLOT_BITS-1:0];
    end
    assign in_slot  = lowest;
    assign in_ready = !rst && free != 0 && (!cutting || (cut && is_last));

    always @(posedge clk)
        if (rst) begin
            active  <= 0;
            cutting <= 0;
        end else begin
            active  <= (active & ~ends) | ({{(SLOTS-1){1'b0}}, accepted} << lowest);
            cutting <= accepted || (cutting && !(cut && is_last));
        end

    always @(posedge clk)
        if (accepted) begin
            slot    <= lowest;
            urgent  <= in_urgent;
            address <= in_address;
            bytes   <= in_bytes;
        end else if (cut) begin
            address <= address + {{(ADDRESS_BITS-PIECE_BITS-1){1'b0}}, piece};
            bytes   <= bytes - {{(BYTES_BITS-PIECE_BITS-1){1'b0}}, piece};
        end

    // ---- the queue of pieces, and the one that is fetched ------------------------------------
    wire                fetches;
    wire [TAG_BITS-1:0] next;
    reg                 fetched;
    reg [TAG_BITS-1:0]  tag;

    channel_queue #(
        .QUEUE_BITS(QUEUE_BITS), .CREDITS(1), .CREDIT_BITS(2), .CYCLES_BITS(1), .TAG_BITS(TAG_BITS)
    ) queue (
        .clk(clk), .rst(rst), .in_valid(cutting), .in_ready(queue_ready), .in_urgent(urgent),
        .in_cycles(1'b1), .in_tag({slot, address, piece}),
        .begins(fetches), .begins_tag(next), .credit_back(begins));

    always @(posedge clk) begin
        fetched <= !rst && (fetches || (fetched && !begins));
        if (fetches)
            tag <= next;
    end

    // ---- the engines: one counts down from its setup and its bytes ---------------------------
    reg  [ENGINES-1:0]     busy;
    reg  [LEFT_BITS-1:0]   left [0:ENGINES-1];
    reg  [SLOT_BITS-1:0]   owner [0:ENGINES-1];
    wire [ENGINES-1:0]     ended;
    reg  [ENGINE_BITS-1:0] engine;
    integer                e;
    genvar                 n;
    generate
        for (n = 0; n < ENGINES; n = n + 1) begin : at_end
            assign ended[n] = busy[n] && left[n] == 0;
        end
    endgenerate

    wire [ENGINES-1:0] idle = ~busy | ended;    // or becoming so
    assign begins = fetched && !rst && idle != 0;
    assign begins_engine = engine;
    assign {begins_slot, begins_address, begins_bytes} = tag;
    // Cycles after the first one: setup, and bytes in whole cycles, less one.
    // verilator lint_off UNUSEDSIGNAL
    wire [PIECE_BITS:0]  to_whole = begins_bytes + WIDTH[PIECE_BITS:0] - 1'b1;
    // verilator lint_on UNUSEDSIGNAL
    wire [LEFT_BITS-1:0] duration = SETUP[LEFT_BITS-1:0] - 1'b1
        + {{(LEFT_BITS+WIDTH_BITS-PIECE_BITS-1){1'b0}}, to_whole[PIECE_BITS:WIDTH_BITS]};

    always @* begin
        engine = 0;
        for (e = ENGINES - 1; e >= 0; e = e - 1)
            if (idle[e])
                engine = e[ENGINE_BITS-1:0];
    end

    always @(posedge clk)
        for (e = 0; e < ENGINES; e = e + 1)
            if (rst) begin
                busy[e] <= 1'b0;
            end else if (begins && engine == e[ENGINE_BITS-1:0]) begin
                busy[e]  <= 1'b1;
                left[e]  <= duration;
                owner[e] <= begins_slot;
            end else begin
                busy[e] <= busy[e] && !ended[e];
                left[e] <= left[e] - 1'b1;
            end

    // ---- completion: pieces of each slot that are queued, fetched or moved -------------------
    genvar s;
    generate
        for (s = 0; s < SLOTS; s = s + 1) begin : completion
            reg [OPEN_BITS-1:0] open;
            reg [OPEN_BITS-1:0] gone;
            integer             g;
            wire mine = cutting && slot == s[SLOT_BITS-1:0];
            always @* begin
                gone = 0;
                for (g = 0; g < ENGINES; g = g + 1)
                    gone = gone + {{(OPEN_BITS-1){1'b0}},
                        ended[g] && owner[g] == s[SLOT_BITS-1:0]};
            end
            assign ends[s] = active[s] && !mine && open == gone;
            always @(posedge clk)
                open <= rst ? 0 : open - gone + {{(OPEN_BITS-1){1'b0}}, mine && cut};
        end
    endgenerate

`ifdef FORMAL
    // One slot, any: the bytes that its descriptor has, and those that its pieces have moved.
    (* anyconst *) reg [SLOT_BITS-1:0] which;
    reg started = 0;
    reg [BYTES_BITS-1:0] has = 0, moved = 0;
    reg [ENGINES:0]      flying = 0;
    reg [BYTES_BITS-1:0] landed;
    reg [PIECE_BITS:0]   sizes [0:ENGINES-1];
    reg [ENGINES:0]      landing;
    integer p;

    always @* begin
        landed = moved;
        landing = 0;
        for (p = 0; p < ENGINES; p = p + 1) begin
            landing = landing + ended[p];
            if (ended[p] && owner[p] == which)
                landed = landed + sizes[p];
        end
    end

    always @(posedge clk) begin
        started <= 1;
        flying  <= rst ? 0 : flying + begins - landing;
        moved   <= rst || (accepted && lowest == which) ? 0 : landed;
        if (accepted && lowest == which)
            has <= in_bytes;
        if (begins)
            sizes[begins_engine] <= begins_bytes;
    end

    always @* begin
        assume (rst == !started);
        assume (in_bytes != 0);
        if (started) begin
            assert (flying <= ENGINES);
            assert (flying + begins - landing <= ENGINES);
            if (begins)
                assert (begins_bytes != 0
                    && begins_address[PIECE_BITS-1:0] + begins_bytes <= PIECE);
            if (active[which])
                assert (landed <= has && ends[which] == (landed == has));
        end
    end
`endif
endmodule
