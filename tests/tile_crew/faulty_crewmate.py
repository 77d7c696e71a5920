"""A crewmate to which something happens in the middle of a step, as ``$CREW_FAULT`` says.

``pi-2 5 SIGKILL`` sends the process of pi-2 that signal in its fifth step, when it has computed the gradients
and has not made the step. Several devices are joined by commas.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from manyhands import crewmate
from manyhands.crew import member
from manyhands.crew.state import Learner


def main() -> int:
    names, step, what = os.environ["CREW_FAULT"].split()
    serve, make_step = member.serve, Learner.step

    def serve_badly(duty: member.Duty, *rest: Any) -> bool:
        def step_badly(learner: Learner, gradients: Callable[[], float], num_examples: int) -> float:
            def and_then() -> float:
                loss = gradients()
                if duty.name in names.split(",") and learner.position.num_steps + 1 == int(step):
                    os.kill(os.getpid(), signal.Signals[what])
                return loss

            return make_step(learner, and_then, num_examples)

        Learner.step = step_badly  # type: ignore[method-assign]
        return serve(duty, *rest)

    crewmate.serve = serve_badly
    return crewmate.main()


if __name__ == "__main__":
    sys.exit(main())
