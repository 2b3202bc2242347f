"""A collection of pictures: embedded by a CLIP, stored in LanceDB, searched by text and by picture."""
