"""Time and memory of attentions and train steps, and whether a device is right."""
