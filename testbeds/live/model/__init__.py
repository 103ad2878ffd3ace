"""`offstage host run --model`: a real model decodes from the tier, against dense attention."""
