"""Where samples come from: one interface, one dispatch, a file for each kind of source.

A new kind is a file with a function from a name to a `Listing`, which holds the images and their raw annotations, and a
`Kind` made of it; and a line in `open.KINDS`. What annotations mean is said in `vitkit.data.annotations` for all kinds.
"""
