"""Sources of samples: one interface, one dispatch, a file for each kind of source.

A new kind is a file with a `Kind` and a function from a name to a `Listing`, which holds the images and their raw
annotations; and a line in `open.KINDS`. `vitkit.data.annotations` parses the annotations of all kinds.
"""
