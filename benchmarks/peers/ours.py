"""manyhands on the task of the simulator benchmark."""

from __future__ import annotations

import json
import sys

UNAVAILABLE = 3  # the exit status with which a contestant says that it cannot take part


def main() -> None:
    print(json.dumps({"unavailable": "not plugged in yet"}))
    sys.exit(UNAVAILABLE)


if __name__ == "__main__":
    main()
