"""Where samples come from: one interface, one dispatch, a file for each kind of source."""
