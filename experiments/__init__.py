"""The commands, and the engine below them."""
