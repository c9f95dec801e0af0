"""The workshop: marries tasks and models, and measures what comes of it."""
