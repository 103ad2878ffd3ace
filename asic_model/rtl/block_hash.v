// block_hash.v: XXH3 with 128 bits over the bytes of a block: a stripe of 64 bytes in each cycle.
//
// Model: the low half is the checksum that the firmware gives every block (ofs_base.h), the high one
// what libxxhash's XXH3_128bits adds. Eight lanes have an accumulator of 64 bits each. A stripe's
// eight words meet a key each, and the halves of each are multiplied; product, and the word of the
// lane beside, are added. After sixteen stripes, 1,024 bytes, each accumulator is turned and
// multiplied by a constant, which takes the lanes one more cycle, unless the block ends there. At
// the end eight pairs of accumulators are multiplied, one in a cycle, while the next block's stripes
// come. There is no digest for fewer than eight stripes, or for a part of one.
//
//   cycle   0  a stripe is taken
//           1  its words have met their keys
//           2  the rows of each product are two
//           3  product and word are one number
//           4  it is in the accumulator; after the last stripe they move on
//     5 to 12  a pair of accumulators meets its keys; of each pair
//     1 later  the factors are there
//     2 later  the rows of their product are two
//     3 later  the product is there
//     4 later  its halves, folded, are added to those before, or to what the length gave
//     5 later  of a half's last pair: the sum was turned, and its rows with the constant are two
//     6 later  the half of the digest is there: of the last pair in cycle 18, and the digest is out
//
// The receiver takes a digest in its cycle.
module block_hash (
    input  wire         clk,
    input  wire         rst,
    input  wire         in_valid,
    output wire         in_ready,
    input  wire [511:0] in_stripe,     // the first byte lowest
    input  wire         in_last,       // of its block
    output reg          out_valid,
    output wire [127:0] out_digest
);
    localparam [63:0] PRIME32_1 = 64'h9e3779b1, PRIME32_2 = 64'h85ebca77, PRIME32_3 = 64'hc2b2ae3d,
        PRIME_1 = 64'h9e3779b185ebca87, PRIME_2 = 64'hc2b2ae3d27d4eb4f,
        PRIME_3 = 64'h165667b19e3779f9, PRIME_4 = 64'h85ebca77c2b2ae63,
        PRIME_5 = 64'h27d4eb2f165667c5, PRIME_END = 64'h165667919e3779f9;
    localparam [511:0] BEGIN = {PRIME32_1, PRIME_5, PRIME32_2, PRIME_4, PRIME_3, PRIME_2, PRIME_1,
        PRIME32_3};
    // libxxhash's XXH3_kSecret, its first byte lowest; keys begin at byte 8 n of it for the n-th
    // stripe, at 121 for a block's last one, at 128 after sixteen, at 11 and 117 for the two halves.
    localparam [1535:0] SECRET = {
        128'h7e404bbbcafbd7af280416958f3acb45,
        128'hce31d07ad1b8f88ffca1477d58be162b,
        128'h9e68d429265516d349daf0b751dd0d17,
        128'heb6313faffa081c5c3ebd33483acc5ea,
        128'h647378d9c97e9fc83159b4cd4be0518a,
        128'h1d4f0bc7c7bbdcf93f349ce33f76faa8,
        128'hd8acdea946ef19384ef90da297486471,
        128'ha32e531b8b65d088cb00c391bb52283c,
        128'h4c263a81e69035e08e2443f7744608b8,
        128'h2172ffcc7dd05a8278e5c0cc4ee679cb,
        128'h1f67b3b7a4a44072db979083e96dd4de,
        128'h1cad21f72c81017cbe4ba423396cfeb8
    };

    // ---- which stripe it is -------------------------------------------------------------------
    reg  [3:0]  stripe;                // of the sixteen
    reg         first, pauses;
    wire        takes = in_valid && in_ready;
    wire        turns = takes && stripe == 15 && !in_last;
    reg  [511:0] keys;
    integer     i;
    assign in_ready = !rst && !pauses;

    always @* begin
        keys = SECRET[121*8 +: 512];
        for (i = 0; i < 16; i = i + 1)
            if (!in_last && stripe == i[3:0])
                keys = SECRET[64*i +: 512];
    end

    always @(posedge clk)
        if (rst) begin
            stripe <= 0;
            first  <= 1;
            pauses <= 0;
        end else begin
            pauses <= turns;
            if (takes) begin
                first  <= in_last;
                stripe <= in_last ? 4'd0 : stripe + 1'b1;
            end
        end

    // ---- what each cycle of a stripe needs to know, and the length: 64 bytes times two primes -
    reg  [4:1]  valid, lasts, turning;
    reg  [3:1]  firsts;
    reg         turned;                // an accumulator's rows are to be added
    reg  [63:0] length_low, length_high;

    always @(posedge clk) begin
        valid   <= rst ? 4'b0 : {valid[3:1], takes};
        firsts  <= {firsts[2:1], first};
        lasts   <= {lasts[3:1], in_last};
        turning <= {turning[3:1], turns};
        turned  <= valid[4] && turning[4];
        if (valid[3]) begin
            length_low  <= (firsts[3] ? 64'd0 : length_low) + (PRIME_1 << 6);
            length_high <= (firsts[3] ? 64'd0 : length_high) + (PRIME_2 << 6);
        end
    end

    // ---- the lanes ----------------------------------------------------------------------------
    wire [511:0] accumulators;
    reg  [511:0] words_1, words_2, met_1;

    always @(posedge clk) begin
        words_1 <= in_stripe;
        words_2 <= words_1;
        met_1   <= in_stripe ^ keys;
    end

    genvar l, r;
    generate
        for (l = 0; l < 8; l = l + 1) begin : lane
            wire [32*64-1:0] rows;
            wire [63:0] rows_sum, rows_carry, two, one, turn_sum, turn_carry, three, four;
            reg  [63:0] sum_2, carry_2, added_3, accumulator, turn_sum_5, turn_carry_5;
            for (r = 0; r < 32; r = r + 1) begin : row
                assign rows[r*64 +: 64] =
                    met_1[l*64+32+r] ? {32'b0, met_1[l*64 +: 32]} << r : 64'b0;
            end
            carry_save #(.ROWS(32), .BITS(64)) product (
                .rows(rows), .sum(rows_sum), .carry(rows_carry));
            carry_save #(.ROWS(3), .BITS(64)) beside (
                .rows({sum_2, carry_2, words_2[(l^1)*64 +: 64]}), .sum(two), .carry(one));
            // The accumulator, the one that is turned, or what a block begins with.
            wire [63:0] base = firsts[3] && valid[3] ? BEGIN[l*64 +: 64]
                : turned ? turn_sum_5 : accumulator;
            carry_save #(.ROWS(3), .BITS(64)) next (
                .rows({base, turned ? turn_carry_5 : 64'b0, valid[3] ? added_3 : 64'b0}),
                .sum(three), .carry(four));
            times_constant #(.CONSTANT(PRIME32_1)) turn (
                .key(accumulator ^ accumulator >> 47 ^ SECRET[128*8+l*64 +: 64]),
                .sum(turn_sum), .carry(turn_carry));
            always @(posedge clk) begin
                sum_2        <= rows_sum;
                carry_2      <= rows_carry;
                added_3      <= two + one;
                accumulator  <= three + four;
                turn_sum_5   <= turn_sum;
                turn_carry_5 <= turn_carry;
            end
            assign accumulators[l*64 +: 64] = accumulator;
        end
    endgenerate

    // ---- the end: pairs of accumulators, first for the low half, then for the high one --------
    reg  [511:0] ended;                // the next pair lowest
    reg  [63:0]  start_low, start_high;
    reg  [3:0]   pair;                 // 8: none
    reg  [2:0]   pair_5, pair_6, pair_7;
    reg          met, rowed, made, folded;
    reg  [63:0]  left, right;
    reg  [127:0] sum_6, carry_6, product_7;
    reg  [127:0] pair_keys;
    wire [127:0] rows_sum, rows_carry;
    wire [64*128-1:0] rows;

    always @* begin
        pair_keys = SECRET[11*8 +: 128];
        for (i = 0; i < 8; i = i + 1)
            if (pair[2:0] == i[2:0])
                pair_keys = SECRET[(i < 4 ? 11 + 16 * i : 117 + 16 * (i - 4)) * 8 +: 128];
    end

    generate
        for (r = 0; r < 64; r = r + 1) begin : long
            assign rows[r*128 +: 128] = right[r] ? {64'b0, left} << r : 128'b0;
        end
    endgenerate
    carry_save #(.ROWS(64), .BITS(128)) long_product (
        .rows(rows), .sum(rows_sum), .carry(rows_carry));

    always @(posedge clk) begin
        if (valid[4] && lasts[4]) begin
            ended      <= accumulators;
            start_low  <= length_low;
            start_high <= ~length_high;
            pair       <= 0;
        end else begin
            ended <= {ended[127:0], ended[511:128]};
            if (rst)
                pair <= 8;
            else if (pair != 8)
                pair <= pair + 1'b1;
        end
        met       <= pair != 8;
        pair_5    <= pair[2:0];
        {right, left} <= ended[127:0] ^ pair_keys;
        rowed     <= met;
        pair_6    <= pair_5;
        sum_6     <= rows_sum;
        carry_6   <= rows_carry;
        made      <= rowed;
        pair_7    <= pair_6;
        product_7 <= sum_6 + carry_6;
    end

    reg  [63:0] total, end_sum, end_carry, end_product, low;
    reg         folded_high, ends, ends_high, low_out;
    wire [63:0] fold = product_7[127:64] ^ product_7[63:0];
    wire [63:0] start = pair_7 == 0 ? start_low : pair_7 == 4 ? start_high : total;
    wire [63:0] end_rows_sum, end_rows_carry;
    times_constant #(.CONSTANT(PRIME_END)) last_turn (
        .key(total ^ total >> 37), .sum(end_rows_sum), .carry(end_rows_carry));

    always @(posedge clk) begin
        total       <= start + fold;
        folded      <= made && pair_7[1:0] == 3;
        folded_high <= pair_7[2];
        end_sum     <= end_rows_sum;
        end_carry   <= end_rows_carry;
        ends        <= folded && !rst;
        ends_high   <= folded_high;
        end_product <= end_sum + end_carry;
        low_out     <= ends && !ends_high;
        out_valid   <= ends && ends_high && !rst;
        if (low_out)
            low <= end_product;
    end
    assign out_digest = {end_product ^ end_product >> 32, low ^ low >> 32};
endmodule
