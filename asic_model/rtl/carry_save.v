// carry_save.v: rows of bits added up to two, modulo 2^BITS: `sum + carry` is the sum of all.
//
// Model: the rows stand in a queue: an adder of three bits takes the first three and appends two,
// until two are left, so the depth grows with the logarithm and no carry moves further than one
// place. The last addition is the next cycle's work. Combinational.
module carry_save #(
    parameter ROWS = 3,            // 3 or more
    parameter BITS = 64
) (
    input  wire [ROWS*BITS-1:0] rows,
    output wire [BITS-1:0]      sum,
    output wire [BITS-1:0]      carry
);
    localparam LAST = 3 * ROWS - 5;    // each of ROWS - 2 adders appends two

    genvar n;
    generate
        for (n = 0; n <= LAST; n = n + 1) begin : queue
            wire [BITS-1:0] row;
            if (n < ROWS) begin : given
                assign row = rows[n*BITS +: BITS];
            end else begin : added
                localparam FIRST = (n - ROWS) / 2 * 3;
                wire [BITS-1:0] a = queue[FIRST].row;
                wire [BITS-1:0] b = queue[FIRST+1].row;
                wire [BITS-1:0] c = queue[FIRST+2].row;
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
