"""Pictures with labels: where they come from, in which order they are seen, and what their raw pixels give."""
