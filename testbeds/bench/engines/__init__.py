"""`offstage bench engine`: what the tier gains in vLLM, on requests with a trace's arrivals.

`process` runs in the engine's own environment and is the only module that loads it; `link` talks
to it by lines of JSON; `arrivals` makes prompts of a trace; `arms` runs them with and without
the tier. `moments` is `offstage bench prefetch` in the engine.
"""
