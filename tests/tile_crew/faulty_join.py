"""``manyhands`` of which a device dies in the middle of a step, as ``$CREW_FAULT`` says, when it first lives.

``pi-1 5`` kills the process that joins as pi-1 in its fifth step, when it has computed the gradients and has
not made the step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from manyhands import cli
from manyhands.crew.state import Learner


def main() -> None:
    victim, step = os.environ["CREW_FAULT"].split()
    name, out = (sys.argv[sys.argv.index(option) + 1] for option in ("--name", "--out"))
    make_step = Learner.step

    def step_badly(learner: Learner, gradients: Callable[[], float], num_examples: int) -> float:
        def and_then() -> float:
            loss = gradients()
            first = json.loads((Path(out) / "device.json").read_text())["incarnation"] == 1
            if name == victim and first and learner.position.num_steps + 1 == int(step):
                os.kill(os.getpid(), signal.SIGKILL)
            return loss

        return make_step(learner, and_then, num_examples)

    Learner.step = step_badly  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
