"""Engines on the tier: one file an engine, and below them one client of whole objects.

`objects` is what every engine's file is made of; `mover` is the thread under it. Engines are not
installed with Offstage, and nothing of theirs is imported when a module here is: each is loaded by
its engine, by the name that the engine's configuration gives.
"""
