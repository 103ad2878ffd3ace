"""Request traces: their formats, arrivals, and the sessions made from them."""
