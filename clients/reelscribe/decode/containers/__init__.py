"""What the container of a file decides: whether it is read at all, which of its streams, and whether it is complete."""
