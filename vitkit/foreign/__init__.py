"""Models of other libraries: read from files, folders and hubs, and written back in their layouts."""
