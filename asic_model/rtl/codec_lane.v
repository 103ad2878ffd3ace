// codec_lane.v: one lane of the decompressor: a coded piece of KV in, one value out per cycle.
//
// Model: pieces in the format of docs/reference/codec.md, one after another; a piece that is stored
// raw bypasses the lane. A piece is announced with its dtype, its bytes and its values; then its
// bytes arrive, four in a cycle, starting with a new word. Bits are in a window of 64, the next one
// highest; a word is taken when half of the window is free, so that 19 bits, the most a value can
// have, are always available while words keep arriving. The lane pauses with words or receiver.
//
//   cycle  0          the piece is announced
//          1          its first word is taken
//          2 to 4     counts of code lengths (8 bytes), bits of the rest that are fixed and that vary
//          5 ...      the table of symbols, four in a cycle; sums over the counts
//          then       a value in each cycle: the length of its code, by comparing 8 bits with the
//                     limits of all lengths; its bits leave the window
//          1 later    its symbol is read from the table
//          2 later    it is out: the rest's bits at their places, the sign back at the top
//
// So n values with t words of symbols occupy the lane for 5 + t + n cycles, and the last is out in
// cycle t + n + 6. `last` comes with the last value of a piece. `bad` says that no encoder wrote
// the piece: none of its values is data. Bits past the end of a piece are read as zeros.
module codec_lane (
    input  wire        clk,
    input  wire        rst,
    input  wire        piece_valid,
    output wire        piece_ready,
    input  wire [2:0]  piece_dtype,    // 1: bfloat16, 2: float16, 3: fp8_e4m3, 4: fp8_e5m2
    input  wire [15:0] piece_bytes,
    input  wire [12:0] piece_values,   // 1 to 4,096
    input  wire        in_valid,
    output wire        in_ready,
    input  wire [31:0] in_word,        // the first byte lowest
    output reg         out_valid,
    input  wire        out_ready,
    output reg  [15:0] out_value,
    output reg         out_last,
    output reg         out_bad
);
    localparam IDLE = 2'd0, HEADER = 2'd1, TABLE = 2'd2, VALUES = 2'd3;

    reg [1:0]  state;
    reg [2:0]  dtype;
    reg [15:0] bytes, words_left;
    reg [12:0] values_left;
    reg [1:0]  header_word;
    reg [7:0]  counts [1:8];
    reg [15:0] fixed, vary;
    reg [11:0] symbols_left;
    reg [5:0]  symbol_row;
    reg        bad;                    // as far as known so far
    reg [17:0] used_bits;

    wire [3:0] rest_bits = dtype == 1 ? 4'd8 : dtype == 2 ? 4'd11 : dtype == 3 ? 4'd4 : 4'd3;
    wire [3:0] symbol_bits = dtype == 1 ? 4'd8 : dtype == 3 ? 4'd4 : 4'd5;

    // ---- the window --------------------------------------------------------------------------
    reg [63:0] window;
    reg [6:0]  window_bits;
    wire       flows    = !out_valid || out_ready;
    wire       at_hand  = window_bits >= 7'd32 || words_left == 0
        || (state == VALUES && window_bits >= 7'd19);
    wire       works    = flows && at_hand && state != IDLE;
    wire [4:0] value_bits;             // of the next value
    wire [5:0] take_bits = !works ? 6'd0 : state == VALUES ? {1'b0, value_bits}
        : state == TABLE && symbols_left < 4 ? {1'b0, symbols_left[1:0], 3'b0} : 6'd32;
    wire [6:0] bits_left = window_bits > {1'b0, take_bits} ? window_bits - {1'b0, take_bits} : 0;
    wire [31:0] swapped  = {in_word[7:0], in_word[15:8], in_word[23:16], in_word[31:24]};
    wire       word_in   = in_valid && in_ready;
    wire [63:0] shifted  = window << take_bits;
    assign in_ready = words_left != 0 && bits_left <= 7'd32;

    always @(posedge clk)
        if (rst || state == IDLE) begin
            window      <= 0;
            window_bits <= 0;
        end else begin
            window      <= word_in ? shifted | {swapped, 32'b0} >> bits_left : shifted;
            window_bits <= word_in ? bits_left + 7'd32 : bits_left;
        end

    // ---- sums over the counts: steady from the first cycle of the table on --------------------
    reg [11:0] limit_sum [0:8], first_sum [0:8];
    reg [11:0] limit [0:8];            // the first 8 bits that begin a longer code
    reg [7:0]  first [0:8];            // the first symbol whose code is longer
    integer i;

    always @* begin
        limit_sum[0] = 0;
        first_sum[0] = 0;
        for (i = 1; i <= 8; i = i + 1) begin
            limit_sum[i] = limit_sum[i-1] + ({4'b0, counts[i]} << (8 - i));
            first_sum[i] = first_sum[i-1] + {4'b0, counts[i]};
        end
    end

    always @(posedge clk)
        for (i = 0; i <= 8; i = i + 1) begin
            limit[i] <= limit_sum[i];
            first[i] <= first_sum[i][7:0];
        end

    // ---- the next value: how long its code is, which symbol, which bits of the rest ------------
    wire [7:0] code = window[63:56];
    reg  [3:0] length;
    reg  [7:0] offset;
    reg  [4:0] vary_bits;

    always @* begin
        length = 8;
        for (i = 7; i >= 1; i = i - 1)
            if ({4'b0, code} < limit[i])
                length = i[3:0];
        if (limit[8] == 0)
            length = 0;
        offset = length == 0 ? 8'd0
            : first[length-1] + ((code - limit[length-1][7:0]) >> (8 - length));
        vary_bits = 0;
        for (i = 0; i < 16; i = i + 1)
            vary_bits = vary_bits + {4'b0, vary[i]};
    end
    assign value_bits = {1'b0, length} + vary_bits;

    // ---- one cycle later: the symbol; two later: the value ------------------------------------
    reg        valid_1, last_1;
    reg [7:0]  offset_1;
    reg [15:0] rest_1;                 // its bits highest
    reg [7:0]  table_0 [0:63], table_1 [0:63], table_2 [0:63], table_3 [0:63];
    wire [5:0] row = offset_1[7:2];
    wire [7:0] symbol = offset_1[1] ? (offset_1[0] ? table_3[row] : table_2[row])
        : (offset_1[0] ? table_1[row] : table_0[row]);
    reg [15:0] rest;
    reg [3:0]  from;
    wire [15:0] turned = ({8'b0, symbol} << rest_bits) | fixed | rest;
    wire        is_last = values_left == 1;
    wire [15:0] after_code = window[6'd63 - {2'b0, length} -: 16];

    always @* begin
        rest = 0;
        from = 15;
        for (i = 15; i >= 0; i = i - 1)
            if (vary[i]) begin
                rest[i] = rest_1[from];
                from    = from - 1'b1;
            end
    end

    always @(posedge clk) begin
        if (rst) begin
            valid_1   <= 0;
            out_valid <= 0;
        end else if (flows) begin
            valid_1   <= works && state == VALUES;
            out_valid <= valid_1;
        end
        if (flows) begin
            last_1    <= is_last;
            offset_1  <= offset;
            rest_1    <= after_code;
            out_last  <= last_1;
            out_bad   <= bad || (used_bits + 7) >> 3 != {2'b0, bytes};
            out_value <= dtype <= 2 ? {turned[0], turned[15:1]} : {8'b0, turned[0], turned[7:1]};
        end
    end

    // ---- a piece, step by step -----------------------------------------------------------------
    wire [3:0]  too_large;             // of the four symbols in the window
    genvar s;
    generate
        for (s = 0; s < 4; s = s + 1) begin : checks
            assign too_large[s] = symbols_left > s[11:0] && window[63-8*s -: 8] >> symbol_bits != 0;
        end
    endgenerate
    wire sums_wrong = limit_sum[8] != 0 && limit_sum[8] != 12'd256;

    // First discard the words that a piece left over (only a bad one leaves any); its last value
    // moves on in the cycle in which the next piece is announced.
    assign piece_ready = state == IDLE && flows && words_left == 0;

    always @(posedge clk)
        if (rst) begin
            state      <= IDLE;
            words_left <= 0;
        end else if (state == IDLE) begin
            if (word_in)
                words_left <= words_left - 1'b1;
            if (piece_valid && piece_ready) begin
                state       <= HEADER;
                header_word <= 0;
                dtype       <= piece_dtype;
                bytes       <= piece_bytes;
                words_left  <= (piece_bytes + 16'd3) >> 2;
                values_left <= piece_values;
                used_bits   <= 0;
                bad         <= 0;
            end
        end else begin
            if (word_in)
                words_left <= words_left - 1'b1;
            if (works) begin
                used_bits <= used_bits + {12'b0, take_bits};
                if (state == HEADER) begin
                    header_word <= header_word + 1'b1;
                    if (header_word == 2) begin
                        fixed        <= {window[55:48], window[63:56]};
                        vary         <= {window[39:32], window[47:40]};
                        symbols_left <= first_sum[8] == 0 ? 12'd1 : first_sum[8];
                        symbol_row   <= 0;
                        state        <= TABLE;
                    end else if (header_word == 1) begin
                        {counts[5], counts[6], counts[7], counts[8]} <= window[63:32];
                    end else begin
                        {counts[1], counts[2], counts[3], counts[4]} <= window[63:32];
                    end
                end else if (state == TABLE) begin
                    bad <= bad || sums_wrong || too_large != 0 || (fixed & vary) != 0
                        || (fixed | vary) >> rest_bits != 0;
                    symbol_row   <= symbol_row + 1'b1;
                    symbols_left <= symbols_left - 12'd4;
                    if (symbols_left <= 4)
                        state <= VALUES;
                end else begin
                    values_left <= values_left - 1'b1;
                    if (is_last)
                        state <= IDLE;
                end
            end
        end

    always @(posedge clk)
        if (works && state == TABLE) begin
            table_0[symbol_row] <= window[63:56];
            table_1[symbol_row] <= window[55:48];
            table_2[symbol_row] <= window[47:40];
            table_3[symbol_row] <= window[39:32];
        end
endmodule
