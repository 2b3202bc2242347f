"""What is known of a sample: labels, captions, nothing.

An `Annotation` parses what a source's `Listing` says of its samples, whatever kind of source it is.
"""
