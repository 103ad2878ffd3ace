"""`offstage host run --model`: a real model decodes from the tier, beside its dense attention."""
