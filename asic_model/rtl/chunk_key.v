// chunk_key.v: the keys of chunks: SipHash-2-4 with 128 bits, one key in each cycle.
//
// Model: the key of a chunk is a keyed hash of its parent's key and its content (session.c), under
// its tenant's secret. A message has four words; `in_short` leaves out the last one, as for the key
// of a session that shares with nobody. A round of SipHash is two additions in a row, and each has
// a cycle of its own, so the state passes one of 36 half rounds in each cycle. The pipeline never
// stalls: a key begins with a credit, which is room at the receiver, who gives it back when it
// takes the key. Keys of one session follow from each other: the next begins when the last is out.
//
//   cycle       0  the handshake: the secret is spread, the first word mixed in
//      1, 2 to 36  half rounds: five words with two rounds each, then four for each half of the key
//              37  the key is out
//
// Proved (test_formal.py): credits are never negative or above their number, none is lost, and no
// key comes out that did not begin.
module chunk_key #(
    parameter ID_BITS = 8,
    parameter CREDITS = 16,
    parameter CREDIT_BITS = 5      // CREDITS < 2^CREDIT_BITS
) (
    input  wire               clk,
    input  wire               rst,
    input  wire               in_valid,
    output wire               in_ready,
    input  wire [127:0]       in_secret,   // low half first, as in ofs_base.h
    input  wire [127:0]       in_parent,
    input  wire [127:0]       in_content,
    input  wire               in_short,    // 24 bytes: the content has no high half
    input  wire [ID_BITS-1:0] in_id,
    output wire               out_valid,
    output wire [127:0]       out_key,
    output wire [ID_BITS-1:0] out_id,
    input  wire               credit_back
);
    localparam HALVES = 36;        // half rounds
    localparam WORDS_END = 20;     // those up to here take words in, four each
    localparam LOW_AT = 28;        // the first one behind the low half of the key

    // ---- credits -----------------------------------------------------------------------------
    reg [CREDIT_BITS-1:0] credits;
    assign in_ready = !rst && (credits != 0 || credit_back);
    wire begins = in_valid && in_ready;

    always @(posedge clk)
        if (rst)
            credits <= CREDITS[CREDIT_BITS-1:0];
        else
            credits <= credits + {{(CREDIT_BITS-1){1'b0}}, credit_back}
                - {{(CREDIT_BITS-1){1'b0}}, begins};

    // ---- the entry: four words of state, and four of the message -----------------------------
    reg [255:0]       state;       // v3, v2, v1, v0
    reg [255:0]       words;       // the one that the state has taken lowest
    reg               valid, short;
    reg [ID_BITS-1:0] id;

    always @(posedge clk) begin
        valid <= begins;
        short <= in_short;
        id    <= in_id;
        words <= {in_short ? 64'h18 << 56 : in_content[127:64], in_content[63:0], in_parent};
        state <= {in_secret[127:64] ^ 64'h7465646279746573 ^ in_parent[63:0],
            in_secret[63:0] ^ 64'h6c7967656e657261,
            in_secret[127:64] ^ 64'h646f72616e646f6d ^ 64'hee,
            in_secret[63:0] ^ 64'h736f6d6570736575};
    end

    // ---- the half rounds ---------------------------------------------------------------------
    genvar h;
    generate
        for (h = 0; h < HALVES; h = h + 1) begin : half
            wire [255:0]       state_in;
            wire               valid_in, short_in;
            wire [ID_BITS-1:0] id_in;
            reg  [255:0]       state_out;
            reg                valid_out;
            reg  [ID_BITS-1:0] id_out;
            wire [63:0] v0, v1, v2, v3, sum_0, sum_2, turned_1, turned_3;

            if (h == 0) begin : first
                assign {state_in, valid_in, short_in, id_in} = {state, valid, short, id};
            end else begin : later
                assign {state_in, valid_in, id_in} =
                    {half[h-1].state_out, half[h-1].valid_out, half[h-1].id_out};
                if (h < WORDS_END) begin : with_size
                    assign short_in = half[h-1].sized.short_out;
                end else begin : without_size
                    assign short_in = 1'b0;
                end
            end
            assign {v3, v2, v1, v0} = state_in;
            if (h % 2 == 0) begin : upper      // v0 += v1, v2 += v3
                assign sum_0    = v0 + v1;
                assign sum_2    = v2 + v3;
                assign turned_1 = {v1[50:0], v1[63:51]} ^ sum_0;
                assign turned_3 = {v3[47:0], v3[63:48]} ^ sum_2;
            end else begin : lower             // v0 += v3, v2 += v1
                assign sum_0    = v0 + v3;
                assign sum_2    = v2 + v1;
                assign turned_1 = {v1[46:0], v1[63:47]} ^ sum_2;
                assign turned_3 = {v3[42:0], v3[63:43]} ^ sum_0;
            end

            // What the two rounds of a word end with: it leaves v0, and the next one enters v3.
            wire [63:0] leaves, enters, marks_1, marks_2;
            wire        skipped = short_in && h >= WORDS_END - 4;
            if (h < WORDS_END) begin : sized
                // verilator lint_off UNUSEDSIGNAL
                reg short_out;         // of the last one, nobody's
                // verilator lint_on UNUSEDSIGNAL
                always @(posedge clk)
                    short_out <= short_in;
            end
            if (h < WORDS_END - 4) begin : worded
                wire [255:0] words_in;
                // verilator lint_off UNUSEDSIGNAL
                reg  [255:0] words_out;    // likewise
                // verilator lint_on UNUSEDSIGNAL
                if (h == 0) begin : first
                    assign words_in = words;
                end else begin : later
                    assign words_in = half[h-1].worded.words_out;
                end
                always @(posedge clk)
                    words_out <= h % 4 == 3 ? words_in >> 64 : words_in;
                assign leaves = h % 4 == 3 ? words_in[63:0] : 64'h0;
                assign enters = h % 4 != 3 ? 64'h0
                    : h == WORDS_END - 5 ? (short_in ? 64'h0 : 64'h20 << 56) : words_in[127:64];
            end else begin : sizes
                assign leaves = h == WORDS_END - 1 ? 64'h20 << 56 : 64'h0;
                assign enters = 64'h0;
            end
            assign marks_2 = h == WORDS_END - 1 ? 64'hee : 64'h0;
            assign marks_1 = h == LOW_AT - 1 ? 64'hdd : 64'h0;

            always @(posedge clk) begin
                valid_out <= valid_in && !rst;
                id_out    <= id_in;
                if (skipped)
                    state_out <= state_in ^ {64'h0, marks_2, 128'h0};
                else if (h % 2 == 0)
                    state_out <= {turned_3, sum_2, turned_1, sum_0[31:0], sum_0[63:32]};
                else
                    state_out <= {turned_3 ^ enters, {sum_2[31:0], sum_2[63:32]} ^ marks_2,
                        turned_1 ^ marks_1, sum_0 ^ leaves};
            end

            // The low half of the key is ready eight half rounds before the high one.
            if (h >= LOW_AT) begin : low
                reg [63:0] low_out;
                if (h == LOW_AT) begin : made
                    always @(posedge clk)
                        low_out <= v0 ^ v1 ^ 64'hdd ^ v2 ^ v3;
                end else begin : kept
                    always @(posedge clk)
                        low_out <= half[h-1].low.low_out;
                end
            end
        end
    endgenerate

    wire [63:0] z0, z1, z2, z3;
    assign {z3, z2, z1, z0} = half[HALVES-1].state_out;
    assign out_valid = half[HALVES-1].valid_out;
    assign out_id    = half[HALVES-1].id_out;
    assign out_key   = {z0 ^ z1 ^ z2 ^ z3, half[HALVES-1].low.low_out};

`ifdef FORMAL
    reg started = 0;
    reg [CREDIT_BITS:0] inside = 0;    // begun, and their credit not back
    reg [CREDIT_BITS:0] piped = 0;     // of these, not out yet
    wire [HALVES:0]     at;            // where a key is
    reg [7:0]           found;
    integer             place;
    genvar              p;
    generate
        for (p = 0; p < HALVES; p = p + 1) begin : places
            assign at[p+1] = half[p].valid_out;
        end
    endgenerate
    assign at[0] = valid;

    always @* begin
        found = 0;
        for (place = 0; place <= HALVES; place = place + 1)
            found = found + at[place];
    end

    always @(posedge clk) begin
        started <= 1;
        inside  <= rst ? 0 : inside + begins - credit_back;
        piped   <= rst ? 0 : piped + begins - out_valid;
    end

    always @* begin
        assume (rst == !started);
        assume (!credit_back || (started && inside > piped - out_valid));
        if (started) begin
            assert (credits + inside == CREDITS);
            assert (inside <= CREDITS && piped <= inside);
            assert (found == piped);
            assert (!out_valid || piped != 0);
        end
    end
`endif
endmodule
