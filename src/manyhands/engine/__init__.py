"""Engines: what drives the programs of all hands. They never import each other."""
