"""The formats of request traces that Offstage reads, one module each.

A format is a `Format` object: its name, how it is recognized by the first bytes of a file, and its
reader. To add one, write a module with a `FORMAT`, and name it in `importer.FORMATS`.
"""
