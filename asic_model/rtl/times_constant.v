// times_constant.v: a 64-bit key times a constant, modulo 2^64, up to the last addition.
//
// Model: one row for each bit of the constant that is set, the key shifted by its place; carry_save.v
// adds them up to two. `sum + carry` is the product; that addition is the next cycle's work.
// Combinational.
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
    wire [ROWS*64-1:0] rows;

    genvar n;
    generate
        for (n = 0; n < ROWS; n = n + 1) begin : shifted
            assign rows[n*64 +: 64] = key << place_of(CONSTANT, n);
        end
    endgenerate
    carry_save #(.ROWS(ROWS), .BITS(64)) adders (.rows(rows), .sum(sum), .carry(carry));
endmodule
