"""Learning: one local phase of one device, on its own data."""
