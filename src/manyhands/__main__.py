"""``python -m manyhands``."""

from manyhands.cli import main

main()
