// encode_lane.v: one lane of the compressor: the values of a piece in, its coded bytes out.
//
// Model: pieces in the format of docs/reference/codec.md, one after another, with the bytes that the
// reference writes: codes are optimal, by package-merge. A piece is read twice, so its values wait
// in an SRAM of 4 KiB while the code is made. A piece that coding does not shorten comes out as it
// is, and says so. What is not a whole number of values goes around the lane.
//
//   INTAKE   v + 1        values arrive, one a cycle, and are counted by symbol (v of them)
//   SCAN     s + 2        counts in the order of symbols (s of the dtype) enter a sorted row of
//                         cells, all of which compare at once; equal counts keep their order
//   MERGE    sum m + 8    eight lists, an item a cycle: the first is the row itself, which moves to
//                         an SRAM; the later ones merge it with pairs of the list before
//   BACK     16           from the last list to the first: how many symbols are taken in each
//   LENGTHS  n + 1        n symbols by weight: the length of each is the number of lists with it
//   STARTS   8            the first code and the first place of each length
//   WALK     s + 1        in the order of symbols: their codes and their places in the table
//   SEND     3 + n + v    the header, the table, the values: up to 32 bits a cycle; the last word is
//                         out four cycles later, or five where bits are left over
//
// A list is as long as n and half of the list before, and 2n - 2 at most; with one symbol only the
// first is made, and BACK is left out. `out_bytes` and `out_coded` hold from a piece's first word
// to its last. After reset the counts are cleared, in 256 cycles.
module encode_lane (
    input  wire        clk,
    input  wire        rst,
    input  wire        piece_valid,
    output wire        piece_ready,
    input  wire [2:0]  piece_dtype,    // 1: bfloat16, 2: float16, 3: fp8_e4m3, 4: fp8_e5m2
    input  wire [12:0] piece_values,   // 1 to 4,096; of 16 bits to 2,048
    input  wire        in_valid,
    output wire        in_ready,
    input  wire [15:0] in_value,
    output reg         out_valid,
    input  wire        out_ready,
    output reg  [31:0] out_word,       // the first byte lowest
    output reg         out_last,
    output reg  [12:0] out_bytes,
    output reg         out_coded
);
    localparam CLEAR = 4'd0, IDLE = 4'd1, INTAKE = 4'd2, SCAN = 4'd3, MERGE = 4'd4, BACK = 4'd5,
        LENGTHS = 4'd6, STARTS = 4'd7, WALK = 4'd8, SEND = 4'd9;

    reg [3:0]  state;
    reg [2:0]  dtype;
    reg [12:0] values, values_left;
    reg [8:0]  at;                     // of SCAN, LENGTHS, STARTS, WALK: the step
    reg [8:0]  used;                   // symbols in use
    wire       wide = dtype <= 2;
    wire [8:0] symbols = dtype == 1 ? 9'd256 : dtype == 3 ? 9'd16 : 9'd32;

    // The symbol of a value, and its rest: the mantissa, and the sign lowest.
    function [23:0] divided(input [2:0] kind, input [15:0] value);
        divided = kind == 1 ? {value[14:7], 8'b0, value[6:0], value[15]}
            : kind == 2 ? {3'b0, value[14:10], 5'b0, value[9:0], value[15]}
            : kind == 3 ? {4'b0, value[6:3], 12'b0, value[2:0], value[7]}
            : {3'b0, value[6:2], 13'b0, value[1:0], value[7]};
    endfunction

    // ---- INTAKE: the values, their counts, and which bits of the rest vary --------------------
    wire        takes_in = in_valid && in_ready;
    wire [11:0] index = values[11:0] - values_left[11:0];
    wire [7:0]  symbol;
    wire [15:0] rest;
    reg  [15:0] every, some;
    reg         counts_1, bumped_valid;
    reg  [7:0]  symbol_1, bumped_symbol;
    reg  [12:0] bumped;
    (* ram_style = "block" *) reg [12:0] histogram [0:255];
    reg  [12:0] histogram_out;
    wire [12:0] bump = (bumped_valid && bumped_symbol == symbol_1 ? bumped : histogram_out) + 1'b1;
    wire        scanned = state == SCAN && at != 0 && at <= symbols;
    wire        clears = scanned || state == CLEAR;
    wire [7:0]  behind = at[7:0] - 1'b1;
    wire [15:0] vary = every ^ some;

    assign {symbol, rest} = divided(dtype, in_value);
    assign piece_ready = state == IDLE && flows;
    assign in_ready    = state == INTAKE && values_left != 0;

    always @(posedge clk) begin
        histogram_out <= histogram[state == SCAN ? at[7:0] : symbol];
        if (clears || counts_1)
            histogram[state == CLEAR ? at[7:0] : clears ? behind : symbol_1] <= clears ? 0 : bump;
        counts_1 <= takes_in;
        symbol_1 <= symbol;
        if (state == IDLE) begin
            every        <= 16'hffff;
            some         <= 0;
            bumped_valid <= 0;
        end else begin
            if (takes_in) begin
                every <= every & rest;
                some  <= some | rest;
            end
            if (counts_1) begin
                bumped_valid  <= 1;
                bumped_symbol <= symbol_1;
                bumped        <= bump;
            end
        end
    end

    // ---- SCAN: the sorted row; an empty cell has the highest weight ---------------------------
    localparam EMPTY = {13'h1fff, 8'h0};
    reg  [20:0] cells [0:255];         // weight, symbol
    reg         enters;
    reg  [20:0] enter;
    wire        moves = state == CLEAR || (state == MERGE && works && level == 0);
    reg  [255:0] stays;
    integer     i;

    always @* begin
        for (i = 0; i < 256; i = i + 1)
            stays[i] = cells[i][20:8] <= enter[20:8];
    end

    always @(posedge clk) begin
        enters <= scanned && histogram_out != 0;
        enter  <= {histogram_out, behind};
        for (i = 0; i < 256; i = i + 1)
            if (moves)
                cells[i] <= i < 255 ? cells[(i + 1) % 256] : EMPTY;
            else if (enters && !stays[i])
                cells[i] <= i == 0 || stays[(i + 255) % 256] ? enter : cells[(i + 255) % 256];
    end

    // ---- MERGE: a list an item a cycle; of two items the sum is a pair of the next list -------
    reg  [2:0]  level;
    reg         works;                 // else the heads of a list are being read
    reg  [8:0]  items, item, singles_at, pairs_at, pairs_there;
    reg  [14:0] held;
    reg  [15:0] taken_weight;          // of what the last list takes: the bits of all codes
    (* ram_style = "block" *) reg [20:0] singles [0:255];
    (* ram_style = "block" *) reg [14:0] pairs [0:511];
    (* ram_style = "block" *) reg [7:0]  pairs_among [0:2047];   // the first items of a list
    reg  [20:0] singles_out;
    reg  [14:0] pairs_out;
    reg  [7:0]  among_out;
    wire [20:0] single = level == 0 ? cells[0] : singles_out;
    wire        is_single = singles_at < used
        && (pairs_at >= pairs_there || {2'b0, single[20:8]} <= pairs_out);
    wire [14:0] weight = is_single ? {2'b0, single[20:8]} : pairs_out;
    wire        merges = state == MERGE && works;
    wire [8:0]  singles_next = !works ? 9'd0 : singles_at + {8'b0, is_single};
    wire [8:0]  pairs_next = !works ? 9'd0 : pairs_at + {8'b0, !is_single};
    wire        list_ends = merges && item == items - 1'b1;
    wire [8:0]  most = (used << 1) - 9'd2;
    wire [9:0]  longer = {1'b0, used} + {2'b0, items[8:1]};

    always @(posedge clk) begin
        singles_out <= singles[state == MERGE ? singles_next[7:0] : at[7:0]];
        pairs_out   <= pairs[{~level[0], pairs_next[7:0]}];
        among_out   <= pairs_among[{level, back[8:1] - 8'd1}];
        if (merges && level == 0)
            singles[singles_at[7:0]] <= single;
        if (merges && item[0]) begin
            pairs[{level[0], item[8:1]}] <= held + weight;
            pairs_among[{level, item[8:1]}] <= pairs_next[7:0];
        end
        if (merges) begin
            held <= weight;
            item <= item + 1'b1;
            if (level == 7)
                taken_weight <= taken_weight + {1'b0, weight};
        end else
            item <= 0;
        if (state == IDLE)
            taken_weight <= 0;
        singles_at <= singles_next;
        pairs_at   <= pairs_next;
        works      <= state == MERGE && !list_ends;
        if (state != MERGE && state != BACK)
            level <= 0;
        else if (list_ends && level != 7)
            level <= level + 1'b1;
        else if (state == BACK && found)
            level <= level - 1'b1;
        if (state == SCAN) begin
            items       <= used + {8'b0, enters};
            pairs_there <= 0;
        end else if (list_ends) begin
            items       <= longer < {1'b0, most} ? longer[8:0] : most;
            pairs_there <= {1'b0, items[8:1]};
        end
    end

    // ---- BACK: of the first items of a list, those that are pairs name the items of the list before
    reg  [8:0] takes [0:7];            // symbols that a list takes: the least frequent ones
    reg  [8:0] back;                   // the items that are taken of this list
    reg        found;
    wire [8:0] pairs_taken = back == 0 ? 9'd0 : {1'b0, among_out};

    always @(posedge clk) begin
        found <= state == BACK && !found;
        if (state == MERGE)
            back <= most;
        else if (state == BACK && found)
            back <= pairs_taken << 1;
        for (i = 0; i < 8; i = i + 1)
            if (state == IDLE)
                takes[i] <= 0;
            else if (state == BACK && found && level == i[2:0])
                takes[i] <= back - pairs_taken;
    end

    // ---- LENGTHS, STARTS, WALK: lengths by weight, codes by length, then by symbol ------------
    reg  [3:0]  length, length_1;
    reg         ranked;
    reg  [8:0]  counts [0:8];
    reg  [7:0]  next_code [0:8], next_place [0:8], code_sum, place_sum;
    (* ram_style = "block" *) reg [4:0]  lengths [0:255];        // in use, and its code's length
    (* ram_style = "block" *) reg [11:0] codes [0:255];          // length and code
    (* ram_style = "block" *) reg [7:0]  order [0:255];
    reg  [4:0]  lengths_out;
    reg  [11:0] codes_out;
    reg  [7:0]  order_out;
    wire [7:0]  shown [1:8];           // the counts as the header has them
    wire [3:0]  walked = lengths_out[3:0];
    wire        walks = state == WALK && at != 0 && lengths_out[4];
    wire [3:0]  step = at[3:0] + 1'b1;

    genvar      g;
    generate
        for (g = 1; g <= 8; g = g + 1) begin : header
            assign shown[g] = counts[g][7:0];
        end
    endgenerate

    always @* begin
        length = 0;
        for (i = 0; i < 8; i = i + 1)
            length = length + {3'b0, at < takes[i]};
    end

    always @(posedge clk) begin
        ranked   <= state == LENGTHS && at < used;
        length_1 <= length;
        lengths_out <= lengths[at[7:0]];
        if (scanned || ranked)
            lengths[scanned ? behind : singles_out[7:0]] <= scanned ? 5'd0 : {1'b1, length_1};
        if (walks) begin
            codes[behind] <= {walked, next_code[walked]};
            order[next_place[walked]] <= behind;
        end
        if (state == IDLE) begin
            code_sum  <= 0;
            place_sum <= 0;
        end else if (state == STARTS) begin
            code_sum  <= (code_sum + counts[step][7:0]) << 1;
            place_sum <= place_sum + counts[step][7:0];
        end
        for (i = 0; i <= 8; i = i + 1) begin
            if (state == IDLE)
                counts[i] <= 0;
            else if (ranked && length_1 == i[3:0])
                counts[i] <= counts[i] + 1'b1;
            if (state == STARTS && step == i[3:0]) begin
                next_code[i]  <= code_sum;
                next_place[i] <= place_sum;
            end else if (walks && walked == i[3:0]) begin
                next_code[i]  <= next_code[i] + 1'b1;
                next_place[i] <= next_place[i] + 1'b1;
            end else if (state == IDLE) begin
                next_code[i]  <= 0;
                next_place[i] <= 0;
            end
        end
    end

    // ---- how long the coded piece is ----------------------------------------------------------
    reg  [4:0]  ones, vary_bits;
    reg  [16:0] rests, bits, coded_bytes;
    wire [13:0] plain_bytes = wide ? {values, 1'b0} : {1'b0, values};
    wire        shorter = coded_bytes < {3'b0, plain_bytes} && !counts[8][8];

    always @* begin
        ones = 0;
        for (i = 0; i < 16; i = i + 1)
            ones = ones + {4'b0, vary[i]};
    end

    always @(posedge clk) begin
        vary_bits   <= ones;
        rests       <= {12'b0, vary_bits} * {4'b0, values};
        bits        <= rests + {1'b0, taken_weight} + 17'd7;
        coded_bytes <= (bits >> 3) + {8'b0, used} + 17'd12;
    end

    // ---- SEND: tokens of up to 32 bits, and a packer ------------------------------------------
    localparam HEAD = 2'd0, TABLE = 2'd1, VALUE = 2'd2;
    reg         sends_1, sends_2, sends_3, odd_1, done_0;
    reg  [1:0]  kind, kind_1, kind_2;
    reg  [12:0] place;
    reg  [1:0]  head_1;
    (* ram_style = "block" *) reg [7:0] low [0:2047];
    (* ram_style = "block" *) reg [7:0] high [0:2047];
    reg  [7:0]  low_out, high_out;
    wire        flows = !out_valid || out_ready;
    wire        sends = state == SEND && !done_0;
    wire        ends_kind = kind == HEAD ? place == 2
        : kind == TABLE ? place == {4'b0, used} - 1'b1 : place == values - 1'b1;
    wire [15:0] value_1 = wide ? {high_out, low_out} : {8'b0, odd_1 ? high_out : low_out};
    wire [7:0]  value_symbol;
    wire [15:0] value_rest;
    reg  [15:0] kept, kept_2;
    reg  [31:0] plain_2, token_3;
    reg  [5:0]  plain_bits_2, bits_3;
    wire        coded_2 = kind_2 == VALUE && out_coded;
    wire [7:0]  code = codes_out[7:0];
    wire [31:0] coded_token = ({24'b0, code} << vary_bits) | {16'b0, kept_2};

    assign {value_symbol, value_rest} = divided(dtype, value_1);

    always @* begin
        kept = 0;
        for (i = 15; i >= 0; i = i - 1)
            if (vary[i])
                kept = {kept[14:0], value_rest[i]};
    end

    always @(posedge clk) begin
        if (takes_in && (wide || !index[0]))
            low[wide ? index[10:0] : index[11:1]] <= in_value[7:0];
        if (takes_in && (wide || index[0]))
            high[wide ? index[10:0] : index[11:1]] <= wide ? in_value[15:8] : in_value[7:0];
        if (flows) begin
            low_out   <= low[wide ? place[10:0] : place[11:1]];
            high_out  <= high[wide ? place[10:0] : place[11:1]];
            order_out <= order[place[7:0]];
            codes_out <= codes[value_symbol];
        end
    end

    always @(posedge clk)
        if (state != SEND) begin
            {sends_1, sends_2, sends_3, done_0} <= 0;
            kind  <= shorter ? HEAD : VALUE;
            place <= 0;
            out_coded <= state == WALK ? shorter : out_coded;
            out_bytes <= state != WALK ? out_bytes : shorter ? coded_bytes[12:0] : plain_bytes[12:0];
        end else if (flows) begin
            if (sends) begin
                place <= ends_kind ? 13'd0 : place + 1'b1;
                if (ends_kind)
                    kind <= kind == HEAD ? TABLE : VALUE;
                done_0 <= ends_kind && kind == VALUE;
            end
            sends_1 <= sends;
            sends_2 <= sends_1;
            sends_3 <= sends_2;
            kind_1  <= kind;
            kind_2  <= kind_1;
            head_1  <= place[1:0];
            odd_1   <= place[0];
            kept_2  <= kept;
            if (kind_1 == HEAD) begin
                plain_bits_2 <= 6'd32;
                plain_2 <= head_1 == 0 ? {shown[1], shown[2], shown[3], shown[4]}
                    : head_1 == 1 ? {shown[5], shown[6], shown[7], shown[8]}
                    : {every[7:0], every[15:8], vary[7:0], vary[15:8]};
            end else begin
                plain_bits_2 <= kind_1 == VALUE && wide ? 6'd16 : 6'd8;
                plain_2 <= kind_1 == TABLE ? {24'b0, order_out}
                    : {16'b0, wide ? {value_1[7:0], value_1[15:8]} : value_1};
            end
            token_3 <= coded_2 ? coded_token : plain_2;
            bits_3  <= coded_2 ? {2'b0, codes_out[11:8]} + {1'b0, vary_bits} : plain_bits_2;
        end

    reg  [31:0] left;                  // highest first; below are zeros
    reg  [5:0]  left_bits;
    reg  [10:0] words_left;
    wire [5:0]  joined_bits = left_bits + (sends_3 ? bits_3 : 6'd0);
    wire [31:0] token = sends_3 ? token_3 : 32'd0;
    wire [63:0] joined = {left, 32'b0} | ({32'b0, token} << (7'd64 - {1'b0, joined_bits}));
    wire        flushes = done_0 && !sends_1 && !sends_2 && !sends_3 && left_bits != 0;
    wire        emits = state == SEND && flows && (joined_bits[5] || flushes);
    wire        ends = emits && words_left == 1;

    always @(posedge clk) begin
        if (rst)
            out_valid <= 0;
        else if (flows)
            out_valid <= emits;
        if (emits) begin
            out_word <= {joined[39:32], joined[47:40], joined[55:48], joined[63:56]};
            out_last <= words_left == 1;
        end
        if (state != SEND) begin
            left       <= 0;
            left_bits  <= 0;
            words_left <= out_bytes[12:2] + {10'b0, out_bytes[1:0] != 0};
        end else if (flows) begin
            left      <= emits ? joined[31:0] : joined[63:32];
            left_bits <= {1'b0, joined_bits[4:0]};
            if (emits)
                words_left <= words_left - 1'b1;
        end
    end

    // ---- a piece, step by step ----------------------------------------------------------------
    always @(posedge clk) begin
        if (state == IDLE)
            used <= 0;
        else if (enters)
            used <= used + 1'b1;
        if (state == IDLE || state == INTAKE || state == MERGE || state == BACK || state == SEND)
            at <= 0;
        else
            at <= at + 1'b1;
        if (rst) begin
            state <= CLEAR;
            at    <= 0;
        end else case (state)
            CLEAR: if (at == 255)
                state <= IDLE;
            IDLE: if (piece_valid && piece_ready) begin
                state       <= INTAKE;
                dtype       <= piece_dtype;
                values      <= piece_values;
                values_left <= piece_values;
            end
            INTAKE: begin
                if (takes_in)
                    values_left <= values_left - 1'b1;
                if (values_left == 0)
                    state <= SCAN;
            end
            SCAN: if (at == symbols + 1'b1)
                state <= MERGE;
            MERGE: if (list_ends && (level == 7 || used == 1)) begin
                state <= used == 1 ? LENGTHS : BACK;
            end
            BACK: if (found && level == 0)
                state <= LENGTHS;
            LENGTHS: if (at == used) begin
                state <= STARTS;
                at    <= 0;
            end
            STARTS: if (at == 7) begin
                state <= WALK;
                at    <= 0;
            end
            WALK: if (at == symbols)
                state <= SEND;
            default: if (ends)
                state <= IDLE;
        endcase
    end
endmodule
