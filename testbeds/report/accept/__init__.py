"""Whether a KV tier keeps the limits of its operator: a judgement of figures that others made."""
