"""`offstage bench engine`: what the tier is to vLLM, by requests as they came elsewhere.

`process` runs in the engine's own environment and is all that loads it; `link` talks to it by lines
of JSON; `arrivals` makes prompts of a trace; `arms` runs them with and without the tier.
"""
