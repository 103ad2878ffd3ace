// times_constant.v: a 64-bit key times a constant, modulo 2^64, up to the last addition.
//
// Model: one row for each bit of the constant that is set, the key shifted by its place. The rows
// stand in a queue: an adder of three bits takes the first three and appends two, until two are
// left, so the depth grows with the logarithm and no carry moves further than one place.
// `sum + carry` is the product; that addition is the next cycle's work. Combinational.
module times_constant #(
    parameter [63:0] CONSTANT = 64'h9e3779b97f4a7c15
) (
    input  wire [63:0] key,
    output wire [63:0] sum,
    output wire [63:0] carry
);
    // Of the constant: how many bits are set, and where number `which` of them is.
    function integer count_ones(input [63:0] bits);
        integer i;
        begin
            count_ones = 0;
            for (i = 0; i < 64; i = i + 1)
                count_ones = count_ones + {31'b0, bits[i]};
        end
    endfunction

    function integer place_of(input [63:0] bits, input integer which);
        integer i, seen;
        begin
            place_of = 0;
            seen = 0;
            for (i = 0; i < 64; i = i + 1)
                if (bits[i]) begin
                    if (seen == which)
                        place_of = i;
                    seen = seen + 1;
                end
        end
    endfunction

    localparam ROWS = count_ones(CONSTANT);
    localparam LAST = 3 * ROWS - 5;    // each of ROWS - 2 adders appends two

    genvar n;
    generate
        for (n = 0; n <= LAST; n = n + 1) begin : queue
            wire [63:0] row;
            if (n < ROWS) begin : shifted
                assign row = key << place_of(CONSTANT, n);
            end else begin : added
                localparam FIRST = (n - ROWS) / 2 * 3;
                wire [63:0] a = queue[FIRST].row;
                wire [63:0] b = queue[FIRST+1].row;
                wire [63:0] c = queue[FIRST+2].row;
                if ((n - ROWS) % 2 == 0) begin : bits
                    assign row = a ^ b ^ c;
                end else begin : carries
                    assign row = ((a & b) | (c & (a ^ b))) << 1;
                end
            end
        end
    endgenerate
    assign sum   = queue[LAST-1].row;
    assign carry = queue[LAST].row;
endmodule
